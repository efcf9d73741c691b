import pytest
import torch
from torch import nn

from stoker import Layout
from stoker.engine.pipeline_schedule import PipelineSchedule
from support.pool import pool
from support.tasks import pipeline as tasks

CASES = [
    (2, "gpipe", "mlp"),
    (2, "1f1b", "mlp"),
    (2, "interleaved", "mlp"),
    (2, "zero-bubble", "mlp"),
    (2, "gpipe", "tied"),
    (2, "1f1b", "tied"),
    (2, "zero-bubble", "tied"),
    (4, "1f1b", "tied"),
    (4, "interleaved", "tied"),
    (4, "zero-bubble", "tied"),
]


@pytest.mark.process
@pytest.mark.parametrize(("processes", "kind", "name"), CASES)
def test_gradients_are_those_of_one_process_and_the_last_stage_alone_has_outputs(
    processes, kind, name
):
    # Accumulation over batches of two sizes. "tied": weights in the first and last stage, a dict
    # of which the model gets a part, tuples between stages, losses that weigh tokens.
    sizes = [16, 16, 8]
    *others, last = pool().run(processes, tasks.gradients_of_pipeline, name, kind, sizes, 8)
    one = tasks.gradients_alone(name, sizes)
    found = [item for gradients, _ in (*others, last) for item in gradients.items()]
    assert {n for n, _ in found} == set(one)
    for n, gradient in found:
        torch.testing.assert_close(gradient, one[n], rtol=0, atol=1e-10)
    assert len(last[1]) == 8 * len(sizes)
    assert all(outputs == [] for _, outputs in others)


@pytest.mark.process
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_1f1b_warms_up_with_as_many_forwards_as_stages_follow(processes):
    microbatches = 6
    found = pool().run(processes, tasks.order_of_passes, microbatches)
    for rank, (passes, outputs) in enumerate(found):
        warm_up = min(processes - rank - 1, microbatches)
        steady = microbatches - warm_up
        assert passes == "F" * warm_up + "FB" * steady + "B" * warm_up
        assert outputs == (microbatches if rank == processes - 1 else 0)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["1f1b", "interleaved"])
def test_evaluation_gives_what_one_process_does_for_batches_of_any_size(kind):
    sizes = [8, 5, 1, 6]
    first, last = pool().run(2, tasks.forward_passes, kind, sizes)
    assert first == [None] * len(sizes)
    model = tasks.build("mlp")
    for size, (loss, outputs, predicted) in zip(sizes, last, strict=True):
        x, y = tasks.batch("mlp", size, 0)
        torch.testing.assert_close(outputs, model(x))
        torch.testing.assert_close(loss, nn.functional.cross_entropy(model(x), y))
        assert torch.equal(outputs, predicted)
        assert not outputs.requires_grad


@pytest.mark.process
def test_a_trainer_gives_the_same_with_both_schedules():
    ranks = pool().run(2, tasks.trained)
    weights, results, seen, predicted = tasks.trained()
    found = {n: weight for rank in ranks for n, weight in rank[0].items()}
    for n, weight in weights.items():
        torch.testing.assert_close(found[n], weight, rtol=0, atol=1e-10)
    for rank in ranks:
        assert rank[1] == pytest.approx(results)
        torch.testing.assert_close(rank[3], predicted, rtol=0, atol=1e-10)
    assert ranks[0][2] == [(point, 0) for point, _ in seen if point != "forward"]
    assert [count for point, count in ranks[1][2] if point == "step"] == [8, 8, 4] * 2


@pytest.mark.process
def test_state_dicts_of_all_processes_are_the_complete_model_and_tied_weights_count_once():
    ranks = pool().run(2, tasks.state_and_owned)
    complete = tasks.Net(tied=True).state_dict()
    assert {n for state, _ in ranks for n in state} == set(complete)
    assert {n for n in ranks[0][0] if n in ranks[1][0]} == set()
    owned = [n for _, names in ranks for n in names]
    assert sorted(owned) == sorted(set(complete) - {"head.weight"})


@pytest.mark.process
def test_tied_weights_start_equal_where_processes_were_seeded_differently():
    first, last = pool().run(2, tasks.state_and_owned, False)
    assert torch.equal(first[0]["embed.weight"], last[0]["head.weight"])


@pytest.mark.process
@pytest.mark.parametrize("kind", ["1f1b", "zero-bubble"])
def test_frozen_stages_may_be_unfrozen_during_the_run(kind):
    ranks = pool().run(2, tasks.frozen_then_thawed, kind)
    for number, prepare in enumerate((tasks.frozen, lambda model: model)):
        engine = tasks.engine_of("mlp", prepare(tasks.build("mlp")))
        tasks.one_step(engine, tasks.PlainSchedule(), [tasks.batch("mlp", 8, 0)])
        one = tasks.gradients(engine)
        for found in ranks:
            for n, gradient in found[number].items():
                assert (gradient is None) == (one[n] is None)
                if gradient is not None:
                    torch.testing.assert_close(gradient, one[n], rtol=0, atol=1e-10)


@pytest.mark.process
def test_finding_out_shapes_changes_neither_buffers_nor_random_numbers():
    for rank, (first, other) in enumerate(pool().run(2, tasks.first_step_and_another)):
        assert torch.equal(first[0], other[0])
        assert (first[1], other[1]) == (([4], [8]) if rank == 0 else ([], []))


@pytest.mark.process
@pytest.mark.parametrize("kind", ["1f1b", "zero-bubble"])
def test_stages_may_be_copied(kind):
    one = tasks.gradients_alone("tied", [16, 16])
    for gradients in pool().run(4, tasks.copied_stages, kind):
        for n, gradient in gradients.items():
            torch.testing.assert_close(gradient, one[n], rtol=0, atol=1e-10)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("mlp", "gpipe"), ("tied", "1f1b"), ("mlp", "interleaved")]
)
def test_stages_may_be_sharded(name, kind):
    engine = tasks.alone(name)
    batches = [tasks.batch(name, 16, seed) for seed in range(2)]
    step = None if name == "mlp" else tasks.mean_over_samples
    tasks.one_step(engine, tasks.PlainSchedule(), batches, step)
    one = tasks.gradients(engine)
    for gradients in pool().run(4, tasks.sharded_stages, name, kind):
        for n, gradient in gradients.items():
            torch.testing.assert_close(gradient, one[n], rtol=0, atol=1e-10)


def test_zero_bubble_refuses_sharded_stages():
    with pytest.raises(ValueError, match="'zero-bubble' computes gradients in two passes"):
        Layout(pipeline=2, shard=2, schedule="zero-bubble")


@pytest.mark.process
def test_steps_that_a_pipeline_cannot_run_are_rejected_with_a_reason():
    (errors,) = pool().run(1, tasks.faults)
    assert "drew random numbers before it called the model" in errors["draws"]
    assert "called the model twice" in errors["calls_twice"]
    assert "did not call engine(…)" in errors["never_calls"]
    assert "overrides backward" in errors["backward"]


@pytest.mark.process
def test_a_batch_size_that_never_divides_is_logged():
    (lines,) = pool().run(1, tasks.logged_of_a_size)
    (line,) = lines
    assert "a batch of 6 samples does not divide into 4 micro-batches, and is cut into 3" in line


@pytest.mark.process
def test_each_stage_drops_other_values_in_each_micro_batch():
    (first, then), (second, then_too) = pool().run(2, tasks.dropped)
    masks = [tuple(mask) for mask in first + second]
    assert len({mask for mask in masks if not all(mask)}) == 8  # 2 stages, steps and micro-batches
    assert then == then_too


@pytest.mark.process
def test_calling_a_remote_part_names_its_process():
    first, last = pool().run(2, tasks.call_of_the_model)
    assert "is in pipeline stage 1, in process 1 of the pipeline" in first
    assert "'0' is in pipeline stage 0" in last


def test_micro_batches_that_do_not_fit_the_stages_are_refused():
    interleaved = PipelineSchedule("interleaved", 6)
    with pytest.raises(ValueError, match="6 micro-batches are not a multiple of 4 processes"):
        interleaved.microbatches_for(4, virtual=2)
    with pytest.raises(ValueError, match="2 micro-batches are too few for 4 stages"):
        PipelineSchedule("1f1b", 2).microbatches_for(4, virtual=1)
    with pytest.raises(ValueError, match="gpipe has one stage per process.*virtual=2"):
        PipelineSchedule("gpipe").microbatches_for(2, virtual=2)
    with pytest.raises(ValueError, match="interleaved has several stages per process"):
        PipelineSchedule("interleaved").microbatches_for(2, virtual=1)
    with pytest.raises(ValueError, match="virtual=3, but the layout has virtual=2"):
        PipelineSchedule("interleaved", virtual=3).microbatches_for(2, virtual=2)


def test_micro_batches_are_as_many_as_stages_by_default():
    assert PipelineSchedule().microbatches_for(4, virtual=1) == 4
    assert PipelineSchedule("interleaved").microbatches_for(4, virtual=2) == 8
    assert PipelineSchedule("gpipe", 3).microbatches_for(4, virtual=1) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "1f1"}, "schedule '1f1' is unknown.*did you mean '1f1b'"),
        ({"microbatches": 0}, "microbatches must be at least 1, got 0"),
        ({"virtual": -1}, "virtual must be at least 1, got -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PipelineSchedule(**options)


def test_a_model_without_stages_is_refused():
    with pytest.raises(ValueError, match="the engine's layout has none"):
        PipelineSchedule().forward_only(tasks.alone("mlp"), None, max)
