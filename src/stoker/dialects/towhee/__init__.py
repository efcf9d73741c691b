"""The trainer of Towhee: replace ``towhee`` by ``stoker.dialects.towhee`` in a script."""

from stoker.dialects.aliases import arrange

arrange(
    __name__,
    {
        "data": "",
        "data.dataset": "",
        "data.dataset.dataset": "datasets",
        "data.dataset.image_datasets": "datasets",
        "models": "",
        "models.vit": "vit",
        "operator.base": "operator",
        "ops": "ops",
        "ops.image_embedding": "ops",
        "trainer.callback": "callback",
        "trainer.metrics": "metrics",
        "trainer.modelcard": "modelcard",
        "trainer.optimization": "",
        "trainer.optimization.adafactor": "optimization",
        "trainer.optimization.adamw": "optimization",
        "trainer.optimization.optimization": "optimization",
        "trainer.scheduler": "optimization",
        "trainer.trainer": "trainer",
        "trainer.training_config": "training_config",
        "trainer.utils": "",
        "trainer.utils.file_utils": "utils",
        "trainer.utils.layer_freezer": "..nn",
        "trainer.utils.plot_utils": "plot_utils",
        "trainer.utils.trainer_utils": "trainer_utils",
        "trainer.utils.visualization": "plot_utils",
        "utils.log": "utils",
        "utils.matplotlib_utils": "utils",
        "utils.pil_utils": "utils",
    },
)

from stoker.dialects.towhee.datasets import dataset  # noqa: E402

__all__ = ["dataset"]
