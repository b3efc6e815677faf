#include "training/spec/spec_keys.h"

#include "engine/base/edit_distance.h"

namespace tandem::training {
namespace {

constexpr double kBig = 1e12;

#define FIELD(path) \
  [](auto& spec) -> auto& { return spec.path; }

// MaxText's switches for the kind: its configs list all of them and set one to true.
SpecValue KindSwitch(const std::string& kind) {
  return {[kind](TrainSpec& spec, const GivenValue& given) {
            if (ParseBool(Scalar(given))) {
              spec.kind = kind;
            } else if (spec.kind == kind) {
              spec.kind = "train.pretrain";
            }
          },
          nullptr, "true or false"};
}

// clang-format off
std::vector<SpecKey> RunKeys() {
  return {
    {{"version"},
     {[](TrainSpec&, const GivenValue& given) {
        if (ParseInteger(Scalar(given)) != 1) throw BadValue("must be 1");
      }, nullptr, "1"},
     "format of the spec; must be 1", "1"},
    {{kBaseConfig},
     {[](TrainSpec&, const GivenValue&) {
        throw BadValue("stands in a spec file, which it is relative to; it cannot be given here");
      }, nullptr, "a path"},
     "spec file that is read before this one, relative to it; what both say is as this one says", "none"},
    {{"kind"}, Choice<std::string>(FIELD(kind), {{"train.pretrain", "train.pretrain"},
                                                 {"pretrain", "train.pretrain"},
                                                 {"train.sft", "train.sft"},
                                                 {"sft", "train.sft"},
                                                 {"train.dpo", "train.dpo"},
                                                 {"dpo", "train.dpo"}}),
     "what the run does: of text all is learned, fine-tuning (sft) learns the answers in rows, "
     "preference optimisation (dpo) learns from pairs of answers"},
    {{"use_sft"}, KindSwitch("train.sft"), "MaxText's switch: true is `kind` train.sft", "false"},
    {{"use_dpo"}, KindSwitch("train.dpo"), "MaxText's switch: true is `kind` train.dpo", "false"},
    {{"run_name"}, Text(FIELD(run_name)),
     "the run works in `base_output_directory`/`run_name` and resumes from the checkpoints there"},
    {{"base_output_directory"}, Path(FIELD(base_output_directory)), "see `run_name`"},
    {{"hf_access_token"},
     {[](TrainSpec& spec, const GivenValue& given) { spec.hub_token = Scalar(given); }, nullptr,
      "text"},
     "token for models of the hub, never shown or recorded; better in HF_TOKEN, since other "
     "processes can read command lines",
     "HF_TOKEN"},
  };
}

SpecValue Dropout() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            const double share = ParseNumber(Scalar(given));
            CheckRange(share, 0, 0.99);
            spec.model.dropout = share;
          },
          [](const TrainSpec& spec) {
            return spec.model.dropout ? ShowNumber(*spec.model.dropout) : std::string();
          },
          ShowRange("a number", 0, 0.99)};
}

std::vector<SpecKey> ModelKeys() {
  return {
    {{"model.load_parameters_path", "load_parameters_path"},
     Path(FIELD(model.load_parameters_path)),
     "start from this Hugging Face directory, GGUF file (F32, F16, BF16; for an adapter also in blocks) or llama2.c file",
     "fresh weights"},
    {{"model.config", "model.config_path"}, Path(FIELD(model.config_path)),
     "fresh weights in the shape of this config.json", "the fields below"},
    {{"model.family", "decoder_block"}, Text(FIELD(model.family)),
     "llama or minigpt, for fresh weights by fields; every other family by `model.config`"},
    {{"model.n_layers", "base_num_decoder_layers", "num_hidden_layers"},
     Integer(FIELD(model.n_layers), 1, 1000), "layers of fresh weights"},
    {{"model.hidden_dim", "base_emb_dim", "hidden_size"},
     Integer(FIELD(model.hidden_dim), 1, 1 << 20), "width of fresh weights"},
    {{"model.ffn_dim", "base_mlp_dim", "intermediate_size"},
     Integer(FIELD(model.ffn_dim), 0, 1 << 20), "width of the feed-forward layers",
     "8/3 of the width, of minigpt the width"},
    {{"model.n_heads", "base_num_query_heads", "num_attention_heads"},
     Integer(FIELD(model.n_heads), 1, 4096), "heads of attention"},
    {{"model.n_kv_heads", "base_num_kv_heads", "num_key_value_heads"},
     Integer(FIELD(model.n_kv_heads), 0, 4096), "heads of keys and values", "n_heads"},
    {{"model.head_dim", "head_dim"}, Integer(FIELD(model.head_dim), 0, 4096),
     "width of a head", "hidden_dim / n_heads"},
    {{"model.vocab_size", "vocab_size"}, Integer(FIELD(model.vocab_size), 0, 1 << 24),
     "rows of the embedding", "the tokenizer's"},
    {{"model.max_context_len", "max_position_embeddings"},
     Integer(FIELD(model.max_context_len), 0, 1 << 24),
     "context that the exported model says it has", "max_target_length"},
    {{"model.norm_eps", "normalization_layer_epsilon"}, Number(FIELD(model.norm_eps), 0, 1),
     "added in norms"},
    {{"model.rope_theta", "rope_max_timescale"}, Number(FIELD(model.rope_theta), 1, kBig),
     "base of the rotary frequencies"},
    {{"model.tied_embeddings", "logits_via_embedding"}, Bool(FIELD(model.tied_embeddings)),
     "the head is the embedding"},
    {{"model.dropout", "dropout_rate"}, Dropout(),
     "share of activations that is zeroed in training, in place of the value in a loaded configuration",
     "the configuration's; 0 for fresh weights by fields"},
    {{"model.enable_dropout", "enable_dropout"}, Bool(FIELD(model.enable_dropout)),
     "false: no dropout at all, neither the model's nor `lora.dropout`"},
    {{"model.init"}, Choice<FreshInit>(FIELD(model.init), {{"normal", FreshInit::kNormal},
                                           {"xavier_uniform", FreshInit::kXavierUniform}}),
     "how fresh matrices are drawn; xavier_uniform draws embeddings with 1 / sqrt(width)"},
    {{"model.init_std"}, Number(FIELD(model.init_std), 0, 1),
     "normal: deviation of fresh matrices; ends of residual branches / sqrt(2 layers)"},
    {{"model.init_seed", "init_weights_seed"}, Integer(FIELD(model.init_seed), 0, kBig),
     "of fresh weights"},
    {{"model.tokenizer_path", "tokenizer_path"}, Path(FIELD(model.tokenizer_path)),
     "directory or file of the tokenizer; exported with the model", "load_parameters_path"},
    {{"model.chat_template", "chat_template_path", "data.chat_template"},
     Path(FIELD(model.chat_template)), "Jinja file for chats; exported with the model",
     "the tokenizer's"},
    {{"model.trainable", "trainable_parameters_mask"}, List(FIELD(model.trainable)),
     "regular expressions on weight names; the others stay as they are", "all"},
  };
}

SpecValue BaseType() {
  SpecValue value = Choice<LoraBase>(FIELD(lora.base), {{"auto", LoraBase::kAuto},
                                                        {"f32", LoraBase::kF32},
                                                        {"float32", LoraBase::kF32},
                                                        {"bf16", LoraBase::kBF16},
                                                        {"bfloat16", LoraBase::kBF16},
                                                        {"int8", LoraBase::kInt8},
                                                        {"int4", LoraBase::kInt4}});
  value.set = [choose = value.set](TrainSpec& spec, const GivenValue& given) {
    if (Scalar(given) == "nf4") {
      throw BadValue("nf4 is no format here; int4 takes as much memory and can be served");
    }
    choose(spec, given);
  };
  return value;
}

std::vector<SpecKey> LoraKeys() {
  return {
    {{"lora.enable", "lora.enable_lora"}, Bool(FIELD(lora.enable)),
     "train an adapter; the model stays as it is", "true where another `lora` key is given"},
    {{"lora.rank", "lora.lora_rank"}, Integer(FIELD(lora.rank), 1, 4096),
     "of every adapted layer"},
    {{"lora.alpha", "lora.lora_alpha"}, Number(FIELD(lora.alpha), 1e-6, 1e6),
     "A x is multiplied with alpha / rank"},
    {{"lora.rank_stabilized", "lora.use_rslora"}, Bool(FIELD(lora.rank_stabilized)),
     "A x is multiplied with alpha / sqrt(rank) instead"},
    {{"lora.module_path", "lora.lora_module_path"}, Text(FIELD(lora.module_path)),
     "regular expression on module paths, as transformers or MaxText write them",
     "every linear layer but the head"},
    {{"lora.match"},
     Choice<bool>(FIELD(lora.full_match), {{"search", false}, {"full", true}}),
     "`full`: module_path is of the whole path"},
    {{"lora.unmatched"},
     Choice<Unmatched>(FIELD(lora.unmatched), {{"error", Unmatched::kError},
                                               {"note", Unmatched::kNote}}),
     "an alternative of module_path that matches no layer ends the run before step 0, or is said and left out"},
    {{"lora.init"},
     Choice<LoraInit>(FIELD(lora.init), {{"kaiming_uniform", LoraInit::kKaimingUniform},
                                         {"he_uniform", LoraInit::kHeUniform}}),
     "how A begins; B begins with zeros"},
    {{"lora.dropout", "lora.lora_dropout"}, Number(FIELD(lora.dropout), 0, 0.99),
     "share of what A reads that is zeroed in training, for every layer anew"},
    {{"lora.base_dtype", "lora.lora_weight_qtype", "lora.base_qtype"}, BaseType(),
     "what the frozen base is held in; auto: `precision.compute`, or a file's own blocks of integers"},
    {{"lora.load_path", "lora.lora_restore_path"}, Path(FIELD(lora.load_path)),
     "PEFT directory of an adapter to go on from; rank, alpha and layers are its own", "none"},
    {{"lora.export"},
     Choice<bool>(FIELD(lora.export_merged), {{"adapter", false}, {"merged", true}}),
     "`merged`: besides adapter/ also hf/, the model with the adapter merged in"},
    {{"lora.lora_tile_size"},
     {[](TrainSpec&, const GivenValue& given) {
        if (ParseInteger(Scalar(given)) != 32) {
          throw BadValue("must be 32: so many weights share a scale");
        }
      }, nullptr, "32"},
     "weights that share a scale; must be 32", "32"},
  };
}

std::vector<SpecKey> DataKeys() {
  return {
    {{"data.train", "dataset_path", "train_files", "data.path", "hf_train_files"},
     Paths(FIELD(data.train)),
     "text file with samples between delimiter lines, files of rows (JSONL, JSON, Parquet; several by a directory, "
     "`*` and `?`, or a list), or prepared file (`tandem data prepare`)", "must be given"},
    {{"data.eval", "eval_dataset_path", "eval_files", "hf_eval_files"}, Paths(FIELD(data.eval)),
     "the same for evaluations", "none"},
    {{"data.hf_path", "hf_path"}, Path(FIELD(data.hf_path)),
     "directory of a data set in the hub's layout: `data.train` unless that is given, and with `data.eval_split` so for "
     "`data.eval`",
     "none"},
    {{"data.train_split", "train_split"}, Text(FIELD(data.train_split)),
     "split of the directory that is trained on", "the only one it has"},
    {{"data.eval_split", "eval_split", "hf_eval_split"}, Text(FIELD(data.eval_split)),
     "the same of `data.eval`", "the only one it has"},
    {{"data.format"},
     Choice<RowFormat>(FIELD(data.format), {{"auto", RowFormat::kAuto},
                                            {"plain", RowFormat::kPlain},
                                            {"text", RowFormat::kText},
                                            {"messages", RowFormat::kMessages},
                                            {"sharegpt", RowFormat::kShareGpt},
                                            {"alpaca", RowFormat::kInstruction},
                                            {"prompt_completion", RowFormat::kPromptCompletion},
                                            {"preference", RowFormat::kPreference},
                                            {"openai_preference", RowFormat::kOpenAiPreference}}),
     "what a row holds, see data/README.md; auto: by name and first rows"},
    {{"data.columns", "train_data_columns"}, Names(FIELD(data.columns)),
     "names of the format's columns, in its order", "the format's"},
    {{"data.eval_columns", "eval_data_columns"}, Names(FIELD(data.eval_columns)),
     "the same of data.eval", "data.columns"},
    {{"data.train_on_completion_only", "sft_train_on_completion_only"},
     {[](TrainSpec& spec, const GivenValue& given) {
        spec.data.train_on_completion_only = ParseBool(Scalar(given));
      }, [](const TrainSpec& spec) {
        const auto& value = spec.data.train_on_completion_only;
        return std::string(!value ? "" : *value ? "true" : "false");
      }, "true or false"},
     "only answers are learned, prompts are read", "true but for train.pretrain"},
    {{"data.apply_template"},
     Choice<ApplyTemplate>(FIELD(data.apply_template), {{"auto", ApplyTemplate::kAuto},
                                                        {"always", ApplyTemplate::kAlways},
                                                        {"never", ApplyTemplate::kNever}}),
     "alpaca rows and plain prompts as chats; auto: alpaca, where there is a chat template"},
    {{"data.turns"},
     Choice<Turns>(FIELD(data.turns), {{"auto", Turns::kAuto},
                                       {"together", Turns::kTogether},
                                       {"apart", Turns::kApart}}),
     "a chat is one sample, or each of its answers is one; auto: one sample, but apart where the "
     "template rewrites earlier turns"},
    {{"data.on_bad_row"},
     Choice<OnBadRow>(FIELD(data.on_bad_row), {{"error", OnBadRow::kError},
                                               {"skip", OnBadRow::kSkip}}),
     "bad rows end the run before step 0, or are left out"},
    {{"data.template_unix_s"}, Integer(FIELD(data.template_unix_s), 0, 0x1p40),
     "what the clock of a chat template shows, in seconds since 1970; fixed, so that samples never "
     "change"},
    {{"data.delimiter"}, Text(FIELD(data.delimiter)), "line between samples"},
    {{"data.header"},
     Choice<Header>(FIELD(data.header),
                    {{"none", Header::kNone}, {"content_words", Header::kContentWords}}),
     "what is put before every sample, see data/README.md"},
    {{"data.add_bos", "add_bos"}, Bool(FIELD(data.add_bos)), "samples begin with bos_token"},
    {{"data.add_eos", "add_eos"}, Bool(FIELD(data.add_eos)), "samples end with eos_token"},
    {{"data.eos_token"}, Text(FIELD(data.eos_token)), "its spelling",
     "the tokenizer's, else the delimiter"},
    {{"data.bos_token"}, Text(FIELD(data.bos_token)), "its spelling",
     "the tokenizer's, else eos_token"},
    {{"data.max_target_length", "max_target_length"},
     Integer(FIELD(data.max_target_length), 2, 1 << 24),
     "tokens per packed row; of train.dpo per answer with its prompt, a row holds two"},
    {{"data.packing", "grain_packing_type"},
     Choice<Packing>(FIELD(data.packing), {{"none", Packing::kNone},
                                           {"concat_then_split", Packing::kConcatThenSplit},
                                           {"first_fit", Packing::kFirstFit},
                                           {"best_fit", Packing::kBestFit}}),
     "how samples are laid into rows"},
    {{"packing"},
     {[](TrainSpec& spec, const GivenValue& given) {
        if (!ParseBool(Scalar(given))) spec.data.packing = Packing::kNone;
      }, nullptr, "true or false"},
     "MaxText's switch: false is `data.packing` none", "true"},
    {{"data.overflow"},
     Choice<Overflow>(FIELD(data.overflow), {{"truncate", Overflow::kTruncate},
                                             {"truncate_left", Overflow::kTruncateLeft},
                                             {"drop", Overflow::kDrop},
                                             {"error", Overflow::kError},
                                             {"split", Overflow::kSplit}}),
     "what becomes of samples that are longer than a row; truncate_left keeps their ends"},
    {{"data.max_segments_per_seq", "max_segments_per_seq"},
     IntegerOrMinusOne(FIELD(data.max_segments_per_seq), 1 << 20), "samples in a row; 0: 64"},
    {{"data.shuffle", "enable_data_shuffling"}, Bool(FIELD(data.shuffle)),
     "samples come in another order in every epoch"},
    {{"data.seed", "data_shuffle_seed"}, Integer(FIELD(data.seed), 0, kBig),
     "of the order and of dropout"},
    {{"data.num_epoch", "num_epoch"}, Integer(FIELD(data.num_epoch), 0, kBig),
     "the run ends after them; 0: no end"},
  };
}

std::vector<SpecKey> DpoKeys() {
  return {
    {{"dpo.beta", "dpo.dpo_beta", "dpo_beta"}, Number(FIELD(dpo.loss.beta), 1e-6, 100),
     "of train.dpo: how dear it is to leave the reference"},
    {{"dpo.label_smoothing", "dpo.dpo_label_smoothing", "dpo_label_smoothing"},
     Number(FIELD(dpo.loss.label_smoothing), 0, 0.499),
     "of train.dpo: share of pairs whose preference is held for wrong"},
    {{"dpo.max_prompt_length", "max_prompt_length"},
     Integer(FIELD(dpo.max_prompt_length), 0, 1 << 24),
     "of train.dpo: of longer prompts the last tokens are kept; 0: no limit"},
    {{"dpo.algo"},
     {[](TrainSpec&, const GivenValue& given) {
        const std::string& word = Scalar(given);
        if (word == "orpo") throw BadValue("orpo is not available; dpo is");
        if (word != "dpo") throw BadValue("must be dpo; got \"" + word + "\"");
      }, nullptr, "dpo"},
     "MaxText's choice of a loss; must be dpo", "dpo"},
  };
}

std::vector<SpecKey> TrainKeys() {
  return {
    {{"train.steps", "steps"}, Integer(FIELD(train.steps), 1, kBig), "optimiser steps",
     "must be given"},
    {{"train.per_device_batch_size", "per_device_batch_size"},
     Integer(FIELD(train.per_device_batch_size), 1, 1 << 20),
     "rows per micro-batch; of train.dpo a row holds a pair, or more where pairs are packed"},
    {{"train.gradient_accumulation_steps", "gradient_accumulation_steps"},
     Integer(FIELD(train.gradient_accumulation_steps), 1, 1 << 20), "micro-batches per step"},
    {{"train.eval_interval", "eval_interval"},
     IntegerOrMinusOne(FIELD(train.eval_interval), kBig),
     "steps between evaluations; 0: only at the end"},
    {{"train.eval_steps", "eval_steps"}, IntegerOrMinusOne(FIELD(train.eval_steps), kBig),
     "micro-batches of an evaluation; 0: all of the validation text"},
    {{"train.target_eval_loss", "target_eval_loss"},
     Number(FIELD(train.target_eval_loss), 0, kBig),
     "the run ends at an evaluation as good as this; 0: off"},
    {{"train.early_stopping_patience", "early_stopping_patience"},
     Integer(FIELD(train.early_stopping_patience), 0, kBig),
     "the run ends after as many evaluations without a better loss; 0: off"},
  };
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
     "`wsd`: warm-up, stable, decay; `constant`: no warm-up, no decay, no end"},
    {{"train.schedule.schedule_steps", "learning_rate_schedule_steps"},
     IntegerOrMinusOne(FIELD(train.schedule.schedule_steps), kBig),
     "length of the schedule, zero after it", "steps"},
    {{"train.schedule.warmup_fraction", "warmup_steps_fraction"},
     Number(FIELD(train.schedule.warmup_fraction), 0, 1), "share of warm-up, from 0"},
    {{"train.schedule.warmup_steps", "warmup_steps"},
     Integer(FIELD(train.schedule.warmup_steps), -1, kBig), "steps of warm-up, in place of a share",
     "by the share"},
    {{"train.schedule.final_fraction", "learning_rate_final_fraction",
      "cosine_learning_rate_final_fraction"},
     Number(FIELD(train.schedule.final_fraction), 0, 1), "where the decay ends, of the peak"},
    {{"train.schedule.wsd_decay_fraction", "wsd_decay_steps_fraction"},
     Number(FIELD(train.schedule.decay_fraction), 0, 1), "share of the decay of `wsd`"},
    {{"train.schedule.wsd_decay_steps"}, Integer(FIELD(train.schedule.decay_steps), -1, kBig),
     "steps of that decay, in place of a share", "by the share"},
    {{"train.schedule.wsd_style", "wsd_decay_style"},
     Choice<DecayStyle>(FIELD(train.schedule.decay_style), {{"linear", DecayStyle::kLinear},
                                                            {"cosine", DecayStyle::kCosine}}),
     "shape of that decay"},
    {{"train.optimizer.type", "opt_type"},
     Choice<OptimizerKind>(FIELD(train.optimizer.kind), {{"adam", OptimizerKind::kAdam},
                                                         {"adamw", OptimizerKind::kAdamW},
                                                         {"sgd", OptimizerKind::kSgd}}),
     "the optimiser"},
    {{"train.optimizer.state"},
     Choice<MomentState>(FIELD(train.optimizer.state), {{"f32", MomentState::kF32},
                                                        {"8bit", MomentState::k8Bit}}),
     "moments; `8bit`: a quarter of the memory, but for embeddings, norms and small matrices"},
    {{"train.optimizer.momentum"}, Number(FIELD(train.optimizer.momentum), 0, 1),
     "of sgd; 0: plain gradient descent, as MaxText's"},
    {{"train.optimizer.b1", "adam_b1"}, BelowOne(FIELD(train.optimizer.b1)),
     "decay of the first moment"},
    {{"train.optimizer.b2", "adam_b2"}, BelowOne(FIELD(train.optimizer.b2)),
     "decay of the second moment"},
    {{"train.optimizer.eps", "adam_eps"}, Number(FIELD(train.optimizer.eps), 0, 1),
     "added to the root of the second moment"},
    {{"train.optimizer.eps_root", "adam_eps_root"}, Number(FIELD(train.optimizer.eps_root), 0, 1),
     "added below the root"},
    {{"train.optimizer.weight_decay", "adam_weight_decay"},
     Number(FIELD(train.optimizer.weight_decay), 0, 100),
     "of adamw, times the learning rate"},
    {{"train.optimizer.decay_exclude", "adamw_mask"}, DecayExclude(),
     "regular expressions on the names of weights that do not decay; []: all decay, as in MaxText",
     "norm scales and biases"},
    {{"train.gradient_clipping_threshold", "gradient_clipping_threshold"},
     Number(FIELD(train.optimizer.clip_norm), 0, kBig),
     "largest norm of all gradients together; 0: off"},
  };
}

// MaxText's switches. With false, MaxText applies an update that spoils the weights; we skip the
// step instead.
SpecValue AbortSwitch() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            if (ParseBool(Scalar(given)) || spec.train.on_nan != OnNan::kAbort) return;
            spec.train.on_nan = OnNan::kSkip;
          },
          nullptr, "true or false"};
}

std::vector<SpecKey> GuardKeys() {
  return {
    {{"train.on_nan", "on_nan", "train.on_nonfinite"},
     Choice<OnNan>(FIELD(train.on_nan), {{"abort", OnNan::kAbort}, {"rollback", OnNan::kRollback},
                                         {"skip", OnNan::kSkip}}),
     "a loss or gradient that is NaN or infinite: end the run, go back to the last checkpoint and "
     "behind this data, or leave the step out"},
    {{"train.max_rollbacks"}, Integer(FIELD(train.max_rollbacks), 0, 1 << 20),
     "after as many of them the run ends all the same"},
    {{"abort_on_nan_loss", "train.abort_on_nan_loss"}, AbortSwitch(),
     "MaxText's switch: false is `train.on_nan` skip", "true"},
    {{"abort_on_inf_loss"}, AbortSwitch(), "the same", "true"},
    {{"train.skip_step_on_spikes", "skip_step_on_spikes"}, Bool(FIELD(train.spikes.enabled)),
     "leave out steps whose loss or gradient norm is far above those before"},
    {{"train.skip_step_interval", "skip_step_interval"},
     Integer(FIELD(train.spikes.window), 4, 1 << 20),
     "steps that are compared with; the guard waits for half of them"},
    {{"train.skip_step_scaling_factor", "skip_step_scaling_factor"},
     Number(FIELD(train.spikes.factor), 0, kBig), "far: as many standard deviations above their mean"},
  };
}

SpecValue Remat() {
  std::vector<std::pair<std::string, RematPolicy>> policies;
  for (const std::string_view name : RematPolicyNames()) {
    policies.emplace_back(name, *FindRematPolicy(name));
  }
  return Choice<RematPolicy>(FIELD(train.remat.policy), policies);
}

std::vector<SpecKey> RematKeys() {
  return {
    {{"train.remat", "remat_policy"}, Remat(),
     "what of a layer is kept for the backward pass; the rest is computed twice, see below"},
    {{"train.remat_every"}, Integer(FIELD(train.remat.every), 1, 1000),
     "layers of which every_k keeps one input"},
    {{"train.remat_max_bytes"}, Integer(FIELD(train.remat.max_bytes), 0, 0x1p52),
     "what auto may let activations have",
     "what `resources.memory_max_bytes` leaves after the parameters"},
    {{"train.activation_save"},
     Choice<ActivationSave>(FIELD(train.remat.save),
                            {{"plain", ActivationSave::kPlain},
                             {"relu_mask1", ActivationSave::kReluMask1},
                             {"relu_sparse", ActivationSave::kReluSparse},
                             {"recompute", ActivationSave::kRecompute}}),
     "what activation functions keep for the backward pass, see below"},
    {{"train.seq_chunk"}, Integer(FIELD(train.remat.seq_chunk), 0, 1 << 24),
     "tokens that go through a feed-forward layer at once, a multiple of 1024; 0: all"},
  };
}

// MaxText writes -1 for "all".
SpecValue TopP() {
  SpecValue value = Number(FIELD(train.sample.top_p), 0, 1);
  value.set = [](TrainSpec& spec, const GivenValue& given) {
    const double share = ParseNumber(Scalar(given));
    if (share != -1) CheckRange(share, 0, 1);
    spec.train.sample.top_p = share == -1 ? 1 : share;
  };
  value.allowed += "; -1 means 1";
  return value;
}

std::vector<SpecKey> SampleKeys() {
  return {
    {{"train.sample.every", "sample_period"}, Integer(FIELD(train.sample.every), 0, kBig),
     "steps between texts through the serving path; 0: never"},
    {{"train.sample.prompts", "prompt"}, List(FIELD(train.sample.prompts)), "what they continue"},
    {{"train.sample.max_tokens"}, Integer(FIELD(train.sample.max_tokens), 1, 1 << 20),
     "length of a continuation"},
    {{"train.sample.strategy", "decode_sampling_strategy"},
     Choice<SampleStrategy>(FIELD(train.sample.strategy),
                            {{"composite", SampleStrategy::kComposite},
                             {"greedy", SampleStrategy::kGreedy},
                             {"weighted", SampleStrategy::kWeighted},
                             {"nucleus", SampleStrategy::kNucleus},
                             {"topk", SampleStrategy::kTopK}}),
     "which of the next three count: all, none (the likeliest token), temperature, temperature and "
     "top_p, temperature and top_k"},
    {{"train.sample.temperature", "decode_sampling_temperature"},
     Number(FIELD(train.sample.temperature), 0, 2), "0: the likeliest token"},
    {{"train.sample.top_k", "decode_sampling_top_k"}, IntegerOrMinusOne(FIELD(train.sample.top_k), 1 << 24),
     "0: all tokens"},
    {{"train.sample.top_p", "decode_sampling_nucleus_p"}, TopP(),
     "the likeliest tokens that have this share together; 1: all"},
    {{"train.sample.seed"}, Integer(FIELD(train.sample.seed), 0, kBig), "of the draws"},
  };
}

std::vector<SpecKey> CheckpointKeys() {
  return {
    {{"checkpoint.period", "checkpoint_period"}, Integer(FIELD(checkpoint.period), 0, kBig),
     "steps between checkpoints; 0: at the end and when told to stop"},
    {{"checkpoint.keep", "max_num_checkpoints_to_keep"},
     Integer(FIELD(checkpoint.keep), 1, 1 << 20), "newest ones that are kept"},
    {{"checkpoint.resume"}, Bool(FIELD(checkpoint.resume)),
     "go on from the newest valid checkpoint in the run's directory; false: put those there aside"},
    {{"checkpoint.resume_on_changed_data", "resume_on_changed_data"},
     Choice<OnChangedData>(FIELD(checkpoint.on_changed_data),
                           {{"error", OnChangedData::kError},
                            {"continue", OnChangedData::kContinue}}),
     "training data whose content hash is not the checkpoint's ends the run before its first step, "
     "or only warns"},
    {{"checkpoint.on_unreadable"},
     Choice<OnUnreadable>(FIELD(checkpoint.on_unreadable), {{"error", OnUnreadable::kError},
                                                            {"restart", OnUnreadable::kRestart}}),
     "no checkpoint of the run can be read: end with an error that names them, or put them aside "
     "and begin at step 0"},
    {{"checkpoint.async", "async_checkpointing"}, Bool(FIELD(checkpoint.async)),
     "write checkpoints while training goes on, from a copy of weights and moments"},
    {{"checkpoint.export"}, Bool(FIELD(checkpoint.export_model)), "hf/ or adapter/ at the end"},
    {{"checkpoint.export_best"}, Bool(FIELD(checkpoint.export_best)),
     "best/ whenever an evaluation is the best so far"},
    {{"checkpoint.export_every"}, Integer(FIELD(checkpoint.export_every), 0, kBig),
     "steps between exports to exports/step-N, which stay, each with an evaluation; 0: none"},
    {{"checkpoint.export_epochs"}, Bool(FIELD(checkpoint.export_epochs)),
     "the same whenever an epoch is over"},
  };
}

SpecValue Compute() {
  using engine::DType;
  SpecValue value = Choice<DType>(FIELD(compute), {{"bf16", DType::kBF16},
                                                   {"bfloat16", DType::kBF16},
                                                   {"f32", DType::kF32},
                                                   {"float32", DType::kF32}});
  value.set = [choose = value.set](TrainSpec& spec, const GivenValue& given) {
    const std::string& word = Scalar(given);
    if (word == "int8" || word == "int4") {
      throw BadValue(word + " weights can be served but not trained: train in bf16 and serve the " +
                     "result with --dtype " + word +
                     ", or train an adapter beside them with lora.base_dtype: " + word);
    }
    choose(spec, given);
  };
  return value;
}

std::vector<SpecKey> MachineKeys() {
  return {
    {{"precision.compute", "dtype"}, Compute(), "what is computed and exported in"},
    {{"resources.threads"}, Integer(FIELD(resources.threads), 0, 1024), "compute threads",
     "physical cores"},
    {{"resources.lower_priority"}, Bool(FIELD(resources.lower_priority)),
     "give way to everything else on the machine"},
    {{"resources.memory_max_bytes"}, Integer(FIELD(resources.memory_max_bytes), 0, 0x1p52),
     "ceiling of the process's data, with lower_priority; a run that needs more is refused",
     "what the machine has available when the run begins"},
    {{"observe.log_period", "log_period"}, Integer(FIELD(log_period), 1, kBig),
     "steps between log lines"},
    {{"observe.profiler", "profiler"},
     Choice<bool>(FIELD(profiler.enabled),
                  {{"none", false}, {"", false}, {"trace", true}, {"xplane", true}}),
     "`trace`: profile/trace.json for ui.perfetto.dev and profile/summary.txt, of some steps"},
    {{"observe.skip_first_n_steps", "skip_first_n_steps_for_profiler"},
     Integer(FIELD(profiler.skip_first_n_steps), 0, kBig), "steps of the process before the trace"},
    {{"observe.profiler_steps", "profiler_steps"}, Integer(FIELD(profiler.steps), 1, 10000),
     "traced steps"},
    {{"metrics.csv"}, Bool(FIELD(metrics.csv)), "metrics.csv: one row per step and evaluation"},
    {{"metrics.tensorboard", "enable_tensorboard"}, Bool(FIELD(metrics.tensorboard)),
     "tensorboard/: event files with the same scalars"},
    {{"metrics.plot"}, Bool(FIELD(metrics.plot)),
     "loss.svg: training and validation loss, drawn at evaluations and at the end"},
  };
}
// clang-format on
#undef FIELD

std::vector<SpecKey> AllKeys() {
  std::vector<SpecKey> all;
  for (const auto section : {RunKeys, ModelKeys, LoraKeys, DataKeys, DpoKeys, TrainKeys, GuardKeys,
                             OptimizerKeys, RematKeys, SampleKeys, CheckpointKeys, MachineKeys}) {
    for (SpecKey& key : section()) all.push_back(std::move(key));
  }
  return all;
}

}  // namespace

std::span<const SpecKey> SpecKeys() {
  static const std::vector<SpecKey> keys = AllKeys();
  return keys;
}

const SpecKey* FindSpecKey(const std::string& name) {
  for (const SpecKey& key : SpecKeys()) {
    if (std::find(key.names.begin(), key.names.end(), name) != key.names.end()) return &key;
  }
  return nullptr;
}

std::string NearestSpecKey(const std::string& name) {
  std::string nearest;
  size_t best = SIZE_MAX;
  for (const SpecKey& key : SpecKeys()) {
    for (const std::string& known : key.names) {
      const size_t distance = EditDistance(name, known);
      if (distance >= best) continue;
      best = distance;
      nearest = known;
    }
  }
  return nearest;
}

std::string DefaultOf(const SpecKey& key) {
  if (!key.default_text.empty()) return key.default_text;
  const std::string shown = key.value.show(TrainSpec{});
  return shown.empty() ? "none" : shown;
}

std::vector<SpecPath> PathsOf(const TrainSpec& spec) {
  std::vector<SpecPath> paths;
  for (const SpecKey& key : SpecKeys()) {
    if (!key.value.is_path || key.names.front() == "base_output_directory") continue;
    paths.push_back({key.names, key.value.show(spec)});
  }
  return paths;
}

std::string MarkdownRow(const SpecKey& key) {
  const auto cell = [](const std::string& text) {
    std::string out;
    for (const char c : text) out.append(c == '|' ? "\\|" : std::string(1, c));
    return out;
  };
  std::string others;
  for (size_t i = 1; i < key.names.size(); ++i) {
    others.append(i > 1 ? ", " : "").append("`" + key.names[i] + "`");
  }
  const std::string standard = DefaultOf(key);
  const std::string shown =
      key.default_text.empty() && standard != "none" ? "`" + cell(standard) + "`" : cell(standard);
  const std::string& allowed = key.value.allowed;
  const std::string choices = allowed.starts_with("one of") ? "; " + cell(allowed) : "";
  return "| `" + key.names[0] + "` | " + others + " | " + shown + " | " + cell(key.effect) +
         choices + " |";
}

}  // namespace tandem::training
