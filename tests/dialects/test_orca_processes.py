"""Orca's estimator in several processes: those there are, those it starts, Ray and Spark."""

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from stoker.dialects.orca import OrcaContext, init_orca_context, stop_orca_context
from stoker.dialects.orca.data import XShards
from stoker.dialects.orca.data.pandas import read_csv
from support.pool import pool
from support.tasks import orca as tasks

pytestmark = pytest.mark.process


@pytest.mark.row("O13", "O22")
def test_losses_are_weighted_by_samples_and_uneven_data_is_all_used():
    options = {"config": {"lr": 0.0}, "model": tasks.seeded}
    found = pool().run(2, tasks.fitted, options, tasks.uneven)
    (rows, weights), (other, _) = found
    assert rows == other
    assert weights[0] == weights[1]
    x = torch.from_numpy(np.concatenate([tasks.X[:30], tasks.X[:14]]))
    y = torch.from_numpy(np.concatenate([tasks.Y[:30], tasks.Y[:14]]))
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(tasks.seeded({})(x), y))
    assert rows[0]["num_samples"] == 44
    assert rows[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.row("O21")
def test_a_loader_is_divided_and_the_batch_size_is_of_all_workers():
    (rows, _), _ = pool().run(2, tasks.fitted, {}, tasks.train, 1, None, 20)
    assert rows[0]["num_samples"] == 100
    assert rows[0]["batch_count"] == 5


def test_an_owners_own_backward_pass_shares_gradients_too():
    by_hand, _ = pool().run(2, tasks.trained_by_hand, True)
    default, _ = pool().run(2, tasks.trained_by_hand, False)
    assert by_hand == default
    assert by_hand[1][0] == by_hand[1][1]


@pytest.mark.row("O10")
def test_a_stop_on_one_process_ends_all():
    first, second = pool().run(2, tasks.stopped)
    assert first == second
    assert first[0][0]["batch_count"] == 2


@pytest.mark.row("O19")
def test_a_folder_of_something_else_is_refused_on_every_rank(tmp_path):
    (tmp_path / "old.ckpt").write_text("from elsewhere")
    found = pool().run(2, tasks.refused, str(tmp_path))
    assert found[0] == found[1]
    assert "old.ckpt" in found[0]


@pytest.mark.row("O23")
def test_loggers_on_the_first_process_alone_raise_nothing_on_another(tmp_path):
    (rows, _), _ = pool().run(2, tasks.logged, str(tmp_path))
    assert len(rows) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_each_worker_trains_on_its_partition_and_gradients_are_those_of_all_rows():
    (epochs, judged, outputs, weight), other = pool().run(2, tasks.of_two_partitions, False, 0.5)
    assert other[3] == weight
    assert weight == 0.25  # half of the rows pull: 1 → 0.5 → 0.25
    assert [[own["train_loss"] for own in epoch] for epoch in epochs] == [[0, 1], [0, 0.25]]
    assert [[own["num_samples"] for own in epoch] for epoch in epochs] == [[4, 4]] * 2
    assert [own["val_mse"].item() for own in epochs[-1]] == [0, 0.0625]
    assert [own["MSE"].item() for own in judged] == [0, 0.0625]
    assert [own["num_samples"] for own in judged] == [4, 4]
    assert outputs[:, 0].tolist() == [0.0] * 4 + [0.25] * 4


def test_synced_stats_are_those_of_all_workers_by_samples():
    (epochs, judged, _, weight), _ = pool().run(2, tasks.of_two_partitions, True, 0.0, (6, 2))
    assert weight == 1.0
    for own in (*epochs[0], *epochs[1]):
        assert own["train_loss"] == own["val_loss"] == own["val_mse"].item() == 0.25
    assert [own["num_samples"] for own in epochs[0]] == [6, 2]
    assert [own["num_samples"] for own in judged] == [6, 2]
    assert [own["MSE"].item() for own in judged] == [0.25, 0.25]


def trained(estimator):
    """What all backends do alike: train, judge, predict, and give the model back."""
    rows = estimator.fit(tasks.train, 2, batch_size=40, callbacks=[tasks.Widths()])
    assert [row["num_samples"] for row in rows] == [100, 100]
    assert rows[-1]["size"] == 2
    assert rows[-1]["loader_batch"] == 20
    model = estimator.get_model().eval()
    with torch.no_grad():
        return model(torch.from_numpy(tasks.X[:9])).numpy()


def test_the_local_backend_starts_processes(tmp_path):
    estimator = tasks.estimator(workers_per_node=2, model_dir=tmp_path)
    expected = trained(estimator)
    found = estimator.predict({"x": tasks.X[:9]}, batch_size=4)["prediction"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert estimator.get_state_dict()["epoch"] == 2


@pytest.mark.ray
def test_the_ray_backend_trains_and_resumes():
    init_orca_context("local", runtime="ray", cores=2)
    try:
        estimator = tasks.estimator(backend="ray", workers_per_node=2)
        trained(estimator)
    finally:
        stop_orca_context()
    assert estimator.get_state_dict()["global_step"] == 6


@pytest.fixture(scope="module")
def spark():
    context = init_orca_context("local", cores=2, memory="1g")
    assert context is OrcaContext.get_spark_context()
    yield OrcaContext.get_spark_session()
    stop_orca_context()


@pytest.mark.spark
def test_the_spark_backend_trains_on_a_dataframe(spark):
    table = spark.createDataFrame(
        [(x.tolist(), int(y)) for x, y in zip(tasks.X[:40], tasks.Y[:40], strict=True)],
        ["pixels", "digit"],
    )
    columns = {"feature_cols": ["pixels"], "label_cols": ["digit"]}
    estimator = tasks.estimator(backend="spark", workers_per_node=2)
    ((first, second),) = estimator.fit(
        table, batch_size=20, validation_data=table, reduce_results=False, **columns
    )
    assert first["num_samples"] + second["num_samples"] == 40
    assert first["val_num_samples"] + second["val_num_samples"] == 40
    here = tasks.estimator()
    found = here.predict(table.limit(3), feature_cols=["pixels"]).collect()
    assert [len(one["prediction"].toArray()) for one in found] == [10, 10, 10]


@pytest.mark.spark
def test_shards_of_arrays_are_trained_on_and_get_their_predictions(spark):
    data = {"x": tasks.X[:30], "y": tasks.Y[:30]}
    shards = XShards.partition(data, num_shards=4)
    assert (shards.num_partitions(), len(shards)) == (4, 30)
    estimator = tasks.estimator()
    (row,) = estimator.fit(shards, batch_size=10, validation_data=shards)
    assert row["num_samples"] == row["val_num_samples"] == 30
    found = estimator.predict(shards).collect()
    joined = np.concatenate([one["prediction"] for one in found])
    np.testing.assert_allclose(joined, estimator.predict(tasks.X[:30]), rtol=1e-4, atol=1e-6)
    assert np.array_equal(np.concatenate([one["x"] for one in found]), tasks.X[:30])
    assert shards.repartition(2).num_partitions() == 2
    assert len(shards.repartition(6)) == 30
    first, second = shards.transform_shard(lambda s: (s["x"], s["y"])).split()
    assert [len(one) for one in first.collect()] == [len(one) for one in second.collect()]


@pytest.mark.spark
def test_files_are_shards_of_tables(spark, tmp_path):
    table = pandas.DataFrame({"user": [3, 1, 3, 2], "name": ["b", "a", "b", "c"], "y": 1.0})
    for number in range(2):
        table.to_csv(tmp_path / f"{number}.csv", index=False)
    shards = read_csv(str(tmp_path), dtype={"y": np.float32})
    assert list(shards.get_schema()["columns"]) == ["user", "name", "y"]
    assert sorted(shards["user"].unique()) == [1, 2, 3]
    assert shards.concat_to_pdf().shape == (8, 3)
    by_user = shards.partition_by("user", 3).collect()
    places = [(user, n) for n, one in enumerate(by_user) for user in set(one["user"])]
    assert sorted(user for user, _ in places) == [1, 2, 3]  # none is in two shards
    estimator = tasks.estimator(model=tasks.one_weight, loss=nn.MSELoss(), metrics=None)
    columns = {"feature_cols": ["y"], "label_cols": ["user"]}
    found = shards.transform_shard(lambda one: one.assign(y=[[v] for v in one["y"]]))
    predicted = estimator.predict(found, feature_cols=["y"]).collect()
    assert [list(one["prediction"]) for one in predicted] == [[[1.0]] * 4] * 2
    with pytest.raises(ValueError, match="no column 'use'"):
        estimator.fit(shards, **(columns | {"label_cols": ["use"]}))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_csv(str(tmp_path / "none.csv"))
