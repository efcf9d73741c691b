"""`LoaderSeek`: a plain `DataLoader` over a map-style dataset, continued without reading."""

from collections.abc import Iterable, Iterator

from stoker.data.gather import batches_of
from stoker.data.indices import Past, draws_from_torch_alone
from stoker.data.rng import set_state, set_states, states_of, torch_state
from stoker.data.seeded import SeededDataset
from stoker.data.seek import Mark, Place, Seek
from stoker.data.workers import batches_at, workers_run
from stoker.log import get_logger
from stoker.seed import random_state, set_random_state
from stoker.types import Batch

_log = get_logger()


class LoaderSeek(Seek):
    """Makes the indices of the pass again and lets the loader fetch from the place on.

    A pass draws in this order: the seed of the workers, then, when the first index is asked for,
    what the sampler needs; a pass on workers that already run draws no seed. So the pass is begun
    again under the generators of its beginning, `Past` skips the indices and then hands over to
    the generators of now, before anything is fetched.

    The sampler's own generators are afterwards where skipping left them, since workers are sent
    indices ahead. Without workers they are where they were saved, which is the same unless a
    dataset draws from them too.
    """

    kind = "map-style"

    def mark(self) -> Mark:
        """The generators a sampler may draw from, and whether workers run already."""
        loader = self.loader
        shared = torch_state if draws_from_torch_alone(loader._index_sampler) else random_state
        return Mark(shared(), states_of(self.generators()), workers_run(loader))

    def fresh(self, epoch: int | None) -> Iterable[Batch]:
        """A new pass."""
        return batches_of(self.loader)

    def resumed(self, place: Place) -> Iterator[Batch]:
        """The batches from there on; nothing before them is read."""
        loader, own, mark = self.loader, self.generators(), place.mark
        now = random_state()

        def begin() -> None:
            set_state(mark.shared)
            set_states(own, mark.own)

        def arrived() -> None:
            set_random_state(now)
            if loader.num_workers == place.workers == 0:
                set_states(own, place.own)

        if loader.num_workers and not isinstance(loader.dataset, SeededDataset):
            _log.info(
                f"{self.name} continues at batch {place.position + 1}; what a dataset draws at "
                "random in workers is restored only if it is a stoker.data.SeededDataset"
            )
        begin()
        prepare = begin if mark.warm else _nothing
        past = Past(loader._index_sampler, place.position, prepare=prepare, arrived=arrived)
        yield from batches_at(loader, past)


def _nothing() -> None:
    """A pass that starts its workers has drawn their seed by now, as it should."""
