"""Names that other trainers use for the keys of a config, for helpful errors."""

KEYS = (
    *("model", "optimizer", "criterion", "lr_scheduler", "step", "hooks"),
    *("train_loader", "val_loader", "predict_loader", "run", "imports"),
)
"""The top-level keys of a config."""

_OURS_BY_THEIRS = {
    "run.epochs": "max_epochs num_train_epochs n_epochs num_epochs epoch_num train_epoch max_epoch "
    "n_epoch max_duration nb_epoch",
    "run.max_steps": "steps max_iters max_iter num_steps train_iter total_steps max_train_steps",
    "optimizer.lr": "learning_rate lr base_lr max_lr",
    "optimizer.weight_decay": "weight_decay wd",
    "run.micro_batch": "per_device_train_batch_size train_batch_size batch_size "
    "bs train_micro_batch_size micro_batch_size device_train_microbatch_size",
    "run.global_batch": "global_batch_size total_batch_size",
    "run.accumulate": "gradient_accumulation_steps accumulate_grad_batches gradient_accumulation "
    "accum num_accumulation_steps grad_accum accumulation_steps",
    "run.clip_norm": "gradient_clip_val max_grad_norm clip_grad_norm grad_clip clip_grad",
    "run.precision": "fp16 bf16 fp32 amp mixed_precision dtype",
    "run.device": "accelerator no_cuda use_cpu device_str cpu gpu cuda mps use_gpu use_cuda",
    "run.parallel": "strategy num_nodes",
    "run.parallel.replicate": "ddp dp data_parallel dp_size",
    "run.parallel.shard": "fsdp zero zero_stage deepspeed",
    "run.parallel.tensor": "tensor_parallel tensor_parallel_size tp tp_size",
    "run.parallel.pipeline": "pipeline_parallel pipeline_parallel_size pp pp_size",
    "hooks": "callbacks handlers plugins cbs algorithms",
    "run.log_every": "logging_steps log_every_n_steps log_interval log_period log_freq",
    "run.validate_every": "eval_steps val_check_interval check_val_every_n_epoch eval_strategy "
    "evaluation_strategy eval_interval val_interval test_interval eval_period "
    "validation_freq",
    "run.checkpoint.every": "save_steps save_strategy every_n_train_steps save_interval "
    "checkpoint_interval",
    "run.checkpoint.keep": "save_total_limit save_top_k max_to_keep max_keep_ckpts "
    "save_num_checkpoints_to_keep",
    "run.checkpoint.best": "load_best_model_at_end metric_for_best_model",
    "run.resume": "resume_from_checkpoint resume_from ckpt_path checkpoint_path load_from "
    "load_path",
    "run.dir": "output_dir default_root_dir work_dir log_dir save_dir logdir save_folder",
    "run.name": "run_name experiment_name exp_name",
    "run.seed": "seed_everything random_seed manual_seed",
    "run.compile": "torch_compile compile_model jit_compile",
    "run.progress": "enable_progress_bar disable_tqdm display_progress progress_bar",
    "run.limit_train_batches": "train_limit max_train_batches",
    "criterion": "loss loss_fn loss_function loss_func",
    "lr_scheduler": "scheduler lr_schedulers lr_scheduler_type lr_sched",
    "lr_scheduler.warmup_steps": "warmup_steps warmup_iters num_warmup_steps",
    "lr_scheduler.warmup_ratio": "warmup_ratio",
    "train_loader": "train_dataloader train_dataloaders train_data train_dataset dataloader",
    "val_loader": "val_dataloader val_dataloaders eval_dataset valid_loader test_loader "
    "eval_dataloader",
    "predict_loader": "predict_dataloader predict_dataloaders",
    "train_loader.num_workers": "dataloader_num_workers num_workers n_workers",
    "optimizer": "optim optimizers optimiser opt_func",
    "model": "net network module",
    "run": "trainer train training trainer_args",
}
_OURS = {
    theirs: ours for ours, all_theirs in _OURS_BY_THEIRS.items() for theirs in all_theirs.split()
}


FLAGS = {
    **{name: name for name in ("fp16", "bf16", "fp32", "cpu", "cuda", "mps")},
    **dict.fromkeys(("amp", "mixed_precision"), "bf16"),
    **dict.fromkeys(("no_cuda", "use_cpu"), "cpu"),
    **dict.fromkeys(("gpu", "use_gpu", "use_cuda"), "auto"),
}
"""Names of flags that stand for a value, such as ``--fp16``."""


def stoker_name(name: str) -> str | None:
    """Return the key that corresponds to another trainer's name, or None."""
    return _OURS.get(name.rpartition(".")[2].lower().replace("-", "_"))


def use_instead(name: str) -> str:
    """Return the end of an error message for another trainer's name, or an empty string.

    >>> use_instead("max_epochs")
    "; use 'run.epochs'"
    """
    ours = stoker_name(name)
    return f"; use '{ours}'" if ours else ""
