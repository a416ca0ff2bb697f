"""Names of keys in verl's published configuration (verl/trainer/config/_generated_ppo_trainer.yaml, 2026)."""

_ACTOR = """optim fsdp_config rollout_n strategy ppo_mini_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu
use_dynamic_bsz ppo_max_token_len_per_gpu clip_ratio clip_ratio_low clip_ratio_high tau_pos tau_neg clip_ratio_c
loss_agg_mode loss_scale_factor entropy_coeff calculate_entropy use_kl_loss use_torch_compile kl_loss_coef kl_loss_type
ppo_epochs shuffle data_loader_seed grad_clip policy_loss.loss_mode fsdp_config.dtype fsdp_config.model_dtype
fsdp_config.seed optim.optimizer optim.lr optim.lr_warmup_steps_ratio optim.total_training_steps optim.weight_decay
optim.lr_warmup_steps optim.betas optim.clip_grad optim.min_lr_ratio optim.num_cycles optim.lr_scheduler_type"""
_ROLLOUT = """name mode temperature top_k top_p prompt_length response_length dtype gpu_memory_utilization ignore_eos
enforce_eager tensor_model_parallel_size max_num_batched_tokens max_model_len max_num_seqs n do_sample
log_prob_micro_batch_size_per_gpu val_kwargs.top_k val_kwargs.top_p val_kwargs.temperature val_kwargs.n"""
_MODEL = """path tokenizer_path trust_remote_code enable_gradient_checkpointing use_remove_padding lora_rank lora_alpha
target_modules exclude_modules"""
_DATA = """train_files val_files train_max_samples val_max_samples prompt_key reward_fn_key max_prompt_length
max_response_length train_batch_size val_batch_size shuffle seed filter_overlong_prompts truncation"""
_TRAINER = """total_epochs total_training_steps project_name experiment_name logger nnodes n_gpus_per_node save_freq
resume_mode val_before_train test_freq default_local_dir max_actor_ckpt_to_keep device"""
_ALGORITHM = """gamma lam adv_estimator norm_adv_by_std_in_grpo use_kl_in_reward kl_penalty kl_ctrl.type kl_ctrl.kl_coef
kl_ctrl.horizon kl_ctrl.target_kl"""
_REWARD = "num_workers custom_reward_function.path custom_reward_function.name reward_manager.name"

KEYS = {
    f"{prefix}.{name}"
    for prefix, names in (
        ("actor_rollout_ref.actor", _ACTOR),
        ("actor_rollout_ref.rollout", _ROLLOUT),
        ("actor_rollout_ref.model", _MODEL),
        ("data", _DATA),
        ("trainer", _TRAINER),
        ("algorithm", _ALGORITHM),
        ("reward", _REWARD),
    )
    for name in names.split()
}
