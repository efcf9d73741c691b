"""The trainer of Towhee: replace ``towhee`` by ``stoker.dialects.towhee`` in a script."""

from stoker.dialects.aliases import arrange

arrange(
    __name__,
    {
        "models": "",
        "models.vit": "vit",
        "operator.base": "operator",
        "ops": "ops",
        "ops.image_embedding": "ops",
        "trainer.callback": "callback",
        "trainer.metrics": "metrics",
        "trainer.modelcard": "modelcard",
        "trainer.trainer": "trainer",
        "trainer.training_config": "training_config",
        "trainer.utils": "",
        "trainer.utils.layer_freezer": "..nn",
    },
)
