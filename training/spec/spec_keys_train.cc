// Keys of steps, guards, the optimiser, activations and sample texts.

#include "training/spec/spec_sections.h"

namespace tandem::training {

// clang-format off
namespace {

// MaxText's switches. With false, MaxText applies an update that spoils the weights; we skip the
// step instead.
SpecValue AbortSwitch() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            if (ParseBool(ScalarText(given)) || spec.train.on_nan != OnNan::kAbort) return;
            spec.train.on_nan = OnNan::kSkip;
          },
          nullptr, "true or false"};
}

SpecValue DecayExclude() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            spec.train.optimizer.decay_exclude = given.words;
          },
          [](const TrainSpec& spec) {
            const auto& value = spec.train.optimizer.decay_exclude;
            return !value ? std::string() : value->empty() ? "[]" : ShowList(*value);
          },
          "a text, or a list of them"};
}

SpecValue Remat() {
  std::vector<std::pair<std::string, RematPolicy>> policies;
  for (const std::string_view name : RematPolicyNames()) {
    policies.emplace_back(name, *FindRematPolicy(name));
  }
  return Choice<RematPolicy>(FIELD(train.remat.policy), policies);
}

// MaxText writes -1 for "all".
SpecValue TopP() {
  SpecValue value = Number(FIELD(train.sample.top_p), 0, 1);
  value.set = [](TrainSpec& spec, const GivenValue& given) {
    const double share = ParseNumber(ScalarText(given));
    if (share != -1) CheckRange(share, 0, 1);
    spec.train.sample.top_p = share == -1 ? 1 : share;
  };
  value.allowed += "; -1 means 1";
  return value;
}

}  // namespace

std::vector<SpecKey> TrainKeys() {
  return {
    {{"train.steps", "steps"}, Integer(FIELD(train.steps), 1, kBig), "optimiser steps",
     kRequired},
    {{"train.per_device_batch_size", "per_device_batch_size"},
     Integer(FIELD(train.per_device_batch_size), 1, 1 << 20),
     "rows per micro-batch; with train.dpo a row holds a pair, or more if pairs are packed; several "
     "ranks share the rows of a step, which does not grow with them"},
    {{"train.gradient_accumulation_steps", "gradient_accumulation_steps"},
     Integer(FIELD(train.gradient_accumulation_steps), 1, 1 << 20), "micro-batches per step"},
    {{"train.z_loss", "z_loss_multiplier"}, Number(FIELD(train.z_loss), 0, 100),
     "factor of the square of the logits' log-sum-exp, added to every token's loss; 0: off"},
    {{"train.neftune_noise_alpha", "neftune_noise_alpha"},
     Number(FIELD(train.neftune_alpha), 0, 1000),
     "NEFTune: uniform noise of alpha / sqrt(tokens x width) on embeddings while training; 0: off"},
    {{"train.loss_library"}, Path(FIELD(train.loss_library)),
     "library with a loss of its own instead of cross-entropy, see training/loss", "none"},
    {{"train.loss_options"}, Text(FIELD(train.loss_options)),
     "text that the loss library gets when it is opened", "none"},
    {{"train.router_aux_loss", "router_aux_loss_coef", "load_balance_loss_weight"},
     Number(FIELD(train.router_aux_loss), 0, 100),
     "models with experts: factor of the load-balancing loss; 0: off"},
    {{"train.router_z_loss", "router_z_loss_coef"}, Number(FIELD(train.router_z_loss), 0, 100),
     "models with experts: factor of the mean square of the router's log-sum-exp; 0: off"},
    {{"train.eval_interval", "eval_interval"},
     IntegerOrMinusOne(FIELD(train.eval_interval), kBig),
     "steps between evaluations; 0: only at the end"},
    {{"train.eval_steps", "eval_steps"}, IntegerOrMinusOne(FIELD(train.eval_steps), kBig),
     "micro-batches per evaluation; 0: all validation data"},
    {{"train.target_eval_loss", "target_eval_loss"},
     Number(FIELD(train.target_eval_loss), 0, kBig),
     "evaluation loss at which the run ends; 0: off"},
    {{"train.early_stopping_patience", "early_stopping_patience"},
     Integer(FIELD(train.early_stopping_patience), 0, kBig),
     "evaluations without a better loss after which the run ends; 0: off"},
  };
}

std::vector<SpecKey> GuardKeys() {
  return {
    {{"train.on_nan", "on_nan", "train.on_nonfinite"},
     Choice<OnNan>(FIELD(train.on_nan), {{"abort", OnNan::kAbort}, {"rollback", OnNan::kRollback},
                                         {"skip", OnNan::kSkip}}),
     "reaction to a NaN or infinite loss or gradient: end the run, return to the last checkpoint "
     "and skip the data since, or skip the step"},
    {{"train.max_rollbacks"}, Integer(FIELD(train.max_rollbacks), 0, 1 << 20),
     "rollbacks after which the run ends"},
    {{"abort_on_nan_loss", "train.abort_on_nan_loss"}, AbortSwitch(),
     "MaxText's switch: false means `train.on_nan` skip", "true"},
    {{"abort_on_inf_loss"}, AbortSwitch(), "the same", "true"},
    {{"train.skip_step_on_spikes", "skip_step_on_spikes"}, Bool(FIELD(train.spikes.enabled)),
     "skip steps whose loss or gradient norm is far above recent steps"},
    {{"train.skip_step_interval", "skip_step_interval"},
     Integer(FIELD(train.spikes.window), 4, 1 << 20),
     "number of recent steps to compare with; the guard starts after half of them"},
    {{"train.skip_step_scaling_factor", "skip_step_scaling_factor"},
     Number(FIELD(train.spikes.factor), 0, kBig), "standard deviations above the mean of recent "
                                                  "steps that count as far"},
  };
}

std::vector<SpecKey> OptimizerKeys() {
  return {
    {{"train.learning_rate", "learning_rate"},
     Number(FIELD(train.schedule.learning_rate), 0, 100),
     "peak of the schedule; step 0 has rate 0, as in MaxText"},
    {{"train.schedule.type", "lr_schedule_type"},
     Choice<ScheduleKind>(FIELD(train.schedule.kind), {{"cosine", ScheduleKind::kCosine},
                                                       {"linear", ScheduleKind::kLinear},
                                                       {"wsd", ScheduleKind::kWsd},
                                                       {"constant", ScheduleKind::kConstant}}),
     "form of the schedule; `wsd`: warm-up, stable, decay; `constant`: no warm-up, no decay, "
     "no end"},
    {{"train.schedule.schedule_steps", "learning_rate_schedule_steps"},
     IntegerOrMinusOne(FIELD(train.schedule.schedule_steps), kBig),
     "length of the schedule in steps; the rate is 0 after it", "steps"},
    {{"train.schedule.warmup_fraction", "warmup_steps_fraction"},
     Number(FIELD(train.schedule.warmup_fraction), 0, 1), "fraction of the schedule for warm-up "
                                                          "from 0"},
    {{"train.schedule.warmup_steps", "warmup_steps"},
     Integer(FIELD(train.schedule.warmup_steps), -1, kBig), "steps of warm-up; overrides the "
                                                            "fraction",
     "from the fraction"},
    {{"train.schedule.final_fraction", "learning_rate_final_fraction",
      "cosine_learning_rate_final_fraction"},
     Number(FIELD(train.schedule.final_fraction), 0, 1), "rate at the end of the decay, as a "
                                                         "fraction of the peak"},
    {{"train.schedule.wsd_decay_fraction", "wsd_decay_steps_fraction"},
     Number(FIELD(train.schedule.decay_fraction), 0, 1), "fraction of the schedule for the decay "
                                                         "of `wsd`"},
    {{"train.schedule.wsd_decay_steps"}, Integer(FIELD(train.schedule.decay_steps), -1, kBig),
     "steps of the decay of `wsd`; overrides the fraction", "from the fraction"},
    {{"train.schedule.wsd_style", "wsd_decay_style"},
     Choice<DecayStyle>(FIELD(train.schedule.decay_style), {{"linear", DecayStyle::kLinear},
                                                            {"cosine", DecayStyle::kCosine}}),
     "shape of the decay of `wsd`"},
    {{"train.optimizer.type", "opt_type"},
     Choice<OptimizerKind>(FIELD(train.optimizer.kind), {{"adam", OptimizerKind::kAdam},
                                                         {"adamw", OptimizerKind::kAdamW},
                                                         {"sgd", OptimizerKind::kSgd},
                                                         {"adafactor", OptimizerKind::kAdafactor},
                                                         {"lion", OptimizerKind::kLion},
                                                         {"muon", OptimizerKind::kMuon}}),
     "kind of optimiser"},
    {{"train.optimizer.state"},
     Choice<MomentState>(FIELD(train.optimizer.state), {{"f32", MomentState::kF32},
                                                        {"8bit", MomentState::k8Bit}}),
     "storage of the moments; `8bit` needs a quarter of the memory, except for embeddings, norms "
     "and small matrices"},
    {{"train.optimizer.momentum"}, Number(FIELD(train.optimizer.momentum), 0, 1),
     "momentum of sgd; 0: plain gradient descent, as in MaxText"},
    {{"train.optimizer.b1", "adam_b1"}, BelowOne(FIELD(train.optimizer.b1)),
     "decay of the first moment"},
    {{"train.optimizer.b2", "adam_b2"}, BelowOne(FIELD(train.optimizer.b2)),
     "decay of the second moment; lion: of the moment", "0.95; lion: 0.99"},
    {{"train.optimizer.muon_beta", "muon_beta"}, BelowOne(FIELD(train.optimizer.muon_beta)),
     "momentum of muon"},
    {{"train.optimizer.muon_consistent_rms", "muon_consistent_rms"},
     Number(FIELD(train.optimizer.muon_consistent_rms), 0, 100),
     "root mean square of muon's updates before the learning rate, as adamw's have; 0: scale them "
     "by sqrt(max(1, rows / columns))"},
    {{"train.optimizer.ema_decay", "ema_decay"}, BelowOne(FIELD(train.optimizer.ema_decay)),
     "decay per step of a moving average of the weights, kept in checkpoints; 0: none"},
    {{"train.optimizer.eps", "adam_eps"}, Number(FIELD(train.optimizer.eps), 0, 1),
     "added to the root of the second moment"},
    {{"train.optimizer.eps_root", "adam_eps_root"}, Number(FIELD(train.optimizer.eps_root), 0, 1),
     "added under the root of the second moment"},
    {{"train.optimizer.weight_decay", "adam_weight_decay"},
     Number(FIELD(train.optimizer.weight_decay), 0, 100),
     "weight decay of adamw, lion and muon, multiplied by the learning rate"},
    {{"train.optimizer.decay_exclude", "adamw_mask"}, DecayExclude(),
     "regular expressions on the names of weights without decay; []: all weights decay, as in "
     "MaxText",
     "norm scales and biases"},
    {{"train.gradient_clipping_threshold", "gradient_clipping_threshold"},
     Number(FIELD(train.optimizer.clip_norm), 0, kBig),
     "largest norm of all gradients together; larger ones are scaled down; 0: off"},
  };
}

std::vector<SpecKey> RematKeys() {
  return {
    {{"train.remat", "remat_policy"}, Remat(),
     "values of a layer kept for the backward pass; the rest is recomputed, see below"},
    {{"train.remat_every"}, Integer(FIELD(train.remat.every), 1, 1000),
     "every_k keeps one input per this many layers"},
    {{"train.remat_max_bytes"}, Integer(FIELD(train.remat.max_bytes), 0, 0x1p52),
     "most bytes of activations under auto",
     "`resources.memory_max_bytes` less the parameters"},
    {{"train.activation_save"},
     Choice<ActivationSave>(FIELD(train.remat.save),
                            {{"plain", ActivationSave::kPlain},
                             {"relu_mask1", ActivationSave::kReluMask1},
                             {"relu_sparse", ActivationSave::kReluSparse},
                             {"recompute", ActivationSave::kRecompute}}),
     "values that activation functions keep for the backward pass, see below"},
    {{"train.seq_chunk"}, Integer(FIELD(train.remat.seq_chunk), 0, 1 << 24),
     "tokens per pass through a feed-forward layer, a multiple of 1024; 0: all"},
  };
}

std::vector<SpecKey> SampleKeys() {
  return {
    {{"train.sample.every", "sample_period"}, Integer(FIELD(train.sample.every), 0, kBig),
     "steps between sample texts from the serving path; 0: never"},
    {{"train.sample.prompts", "prompt"}, List(FIELD(train.sample.prompts)), "prompts of the "
                                                                            "sample texts"},
    {{"train.sample.max_tokens"}, Integer(FIELD(train.sample.max_tokens), 1, 1 << 20),
     "tokens per sample text"},
    {{"train.sample.strategy", "decode_sampling_strategy"},
     Choice<SampleStrategy>(FIELD(train.sample.strategy),
                            {{"composite", SampleStrategy::kComposite},
                             {"greedy", SampleStrategy::kGreedy},
                             {"weighted", SampleStrategy::kWeighted},
                             {"nucleus", SampleStrategy::kNucleus},
                             {"topk", SampleStrategy::kTopK}}),
     "settings in effect: all, none (the likeliest token), temperature, temperature and top_p, "
     "or temperature and top_k"},
    {{"train.sample.temperature", "decode_sampling_temperature"},
     Number(FIELD(train.sample.temperature), 0, 2), "sampling temperature; 0: the likeliest token"},
    {{"train.sample.top_k", "decode_sampling_top_k"}, IntegerOrMinusOne(FIELD(train.sample.top_k), 1 << 24),
     "sample from this many likeliest tokens; 0: all"},
    {{"train.sample.top_p", "decode_sampling_nucleus_p"}, TopP(),
     "sample from the likeliest tokens up to this total probability; 1: all"},
    {{"train.sample.at_start"}, Bool(FIELD(train.sample.at_start)),
     "also sample before the first step of a fresh run"},
    {{"train.sample.seed"}, Integer(FIELD(train.sample.seed), 0, kBig), "seed of sampling"},
  };
}
// clang-format on

}  // namespace tandem::training
