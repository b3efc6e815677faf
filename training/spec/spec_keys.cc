#include "training/spec/spec_keys.h"

#include "engine/base/edit_distance.h"
#include "engine/model/families/family.h"

namespace tandem::training {
namespace {

constexpr size_t kMarkdownColumns = 120;
constexpr const char* kRequired = "must be given";  // default_text of a key without a default

constexpr double kBig = 1e12;

#define FIELD(path) \
  [](auto& spec) -> auto& { return spec.path; }

// MaxText's switches for the kind: its configs list all of them and set one to true.
SpecValue KindSwitch(const std::string& kind) {
  return {[kind](TrainSpec& spec, const GivenValue& given) {
            if (ParseBool(ScalarText(given))) {
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
        if (ParseInteger(ScalarText(given)) != 1) throw BadValue("must be 1");
      }, nullptr, "1"},
     "format of the spec; must be 1", "1"},
    {{kBaseConfig},
     {[](TrainSpec&, const GivenValue&) {
        throw BadValue("is only allowed in a spec file, because its path is relative to that file");
      }, nullptr, "a path"},
     "path of a base spec, relative to this file; this file's values override the base's", "none"},
    {{"kind"}, Choice<std::string>(FIELD(kind), {{"train.pretrain", "train.pretrain"},
                                                 {"pretrain", "train.pretrain"},
                                                 {"train.sft", "train.sft"},
                                                 {"sft", "train.sft"},
                                                 {"train.dpo", "train.dpo"},
                                                 {"dpo", "train.dpo"}}),
     "task of the run: pretrain learns all text, sft learns the answers in rows, dpo learns from "
     "pairs of answers"},
    {{"use_sft"}, KindSwitch("train.sft"),
     "MaxText's switch: true means `kind` train.sft", "false"},
    {{"use_dpo"}, KindSwitch("train.dpo"),
     "MaxText's switch: true means `kind` train.dpo", "false"},
    {{"run_name"}, Text(FIELD(run_name)),
     "the run works in `base_output_directory`/`run_name` and resumes from its checkpoints there"},
    {{"base_output_directory"}, Path(FIELD(base_output_directory)), "see `run_name`"},
    {{"hf_access_token"},
     {[](TrainSpec& spec, const GivenValue& given) { spec.hub_token = ScalarText(given); }, nullptr,
      "text"},
     "token for models of the hub, never shown or recorded; prefer HF_TOKEN, since other "
     "processes can read command lines",
     "HF_TOKEN"},
  };
}

SpecValue Dropout() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            const double share = ParseNumber(ScalarText(given));
            CheckRange(share, 0, 0.99);
            spec.model.dropout = share;
          },
          [](const TrainSpec& spec) {
            return spec.model.dropout ? ShowNumber(*spec.model.dropout) : std::string();
          },
          ShowRange("a number", 0, 0.99)};
}

bool TakesFields(const engine::FamilySpec& family) { return family.fresh != nullptr; }

// The default of model.ffn_dim by family: "8/3 of the width (x), the width (y)".
std::string WidthsByFamily() {
  std::string text;
  for (const engine::FamilySpec* family : engine::Families()) {
    if (!TakesFields(*family)) continue;
    text += (text.empty() ? "" : ", ") + std::string(family->fresh->ffn_dim) + " (" +
            std::string(family->name) + ")";
  }
  return text;
}

std::vector<SpecKey> ModelKeys() {
  return {
    {{"model.load_parameters_path", "load_parameters_path"},
     Path(FIELD(model.load_parameters_path)),
     "model to start from: Hugging Face directory, GGUF file (F32, F16 or BF16; for an adapter "
     "also quantised) or llama2.c file",
     "fresh weights"},
    {{"model.config", "model.config_path"}, Path(FIELD(model.config_path)),
     "config.json that gives the shape of fresh weights", "the fields below"},
    {{"model.family", "decoder_block"}, Text(FIELD(model.family)),
     "family of fresh weights described by the fields below: " +
         engine::FamilyNames(TakesFields) + "; other families need `model.config`"},
    {{"model.n_layers", "base_num_decoder_layers", "num_hidden_layers"},
     Integer(FIELD(model.n_layers), 1, 1000), "number of layers of fresh weights"},
    {{"model.hidden_dim", "base_emb_dim", "hidden_size"},
     Integer(FIELD(model.hidden_dim), 1, 1 << 20), "width of fresh weights"},
    {{"model.ffn_dim", "base_mlp_dim", "intermediate_size"},
     Integer(FIELD(model.ffn_dim), 0, 1 << 20), "width of the feed-forward layers",
     WidthsByFamily()},
    {{"model.n_heads", "base_num_query_heads", "num_attention_heads"},
     Integer(FIELD(model.n_heads), 1, 4096), "number of attention heads"},
    {{"model.n_kv_heads", "base_num_kv_heads", "num_key_value_heads"},
     Integer(FIELD(model.n_kv_heads), 0, 4096), "number of key and value heads", "n_heads"},
    {{"model.head_dim", "head_dim"}, Integer(FIELD(model.head_dim), 0, 4096),
     "width of an attention head", "hidden_dim / n_heads"},
    {{"model.vocab_size", "vocab_size"}, Integer(FIELD(model.vocab_size), 0, 1 << 24),
     "rows of the embedding", "the tokenizer's"},
    {{"model.max_context_len", "max_position_embeddings"},
     Integer(FIELD(model.max_context_len), 0, 1 << 24),
     "context length recorded in the exported model", "max_target_length"},
    {{"model.norm_eps", "normalization_layer_epsilon"}, Number(FIELD(model.norm_eps), 0, 1),
     "epsilon of the norms"},
    {{"model.rope_theta", "rope_max_timescale"}, Number(FIELD(model.rope_theta), 1, kBig),
     "base of the rotary frequencies"},
    {{"model.tied_embeddings", "logits_via_embedding"}, Bool(FIELD(model.tied_embeddings)),
     "use the embedding as the output head"},
    {{"model.dropout", "dropout_rate"}, Dropout(),
     "fraction of activations zeroed in training; replaces the value of a loaded configuration",
     "the configuration's; 0 without one"},
    {{"model.enable_dropout", "enable_dropout"}, Bool(FIELD(model.enable_dropout)),
     "false switches off all dropout: the model's and `lora.dropout`"},
    {{"model.init"}, Choice<FreshInit>(FIELD(model.init), {{"normal", FreshInit::kNormal},
                                           {"xavier_uniform", FreshInit::kXavierUniform}}),
     "distribution of fresh matrices; xavier_uniform draws embeddings with 1 / sqrt(width)"},
    {{"model.init_std"}, Number(FIELD(model.init_std), 0, 1),
     "standard deviation of `normal`; matrices at the end of residual branches have it over "
     "sqrt(2 layers)"},
    {{"model.init_seed", "init_weights_seed"}, Integer(FIELD(model.init_seed), 0, kBig),
     "seed of fresh weights"},
    {{"model.tokenizer_path", "tokenizer_path"}, Path(FIELD(model.tokenizer_path)),
     "directory or file of the tokenizer; exported with the model", "load_parameters_path"},
    {{"model.chat_template", "chat_template_path", "data.chat_template"},
     Path(FIELD(model.chat_template)), "Jinja file for chats; exported with the model",
     "the tokenizer's"},
    {{"model.trainable", "trainable_parameters_mask"}, List(FIELD(model.trainable)),
     "regular expressions on the names of the weights to train; the others stay frozen", "all"},
    {{"model.freeze_router"}, Bool(FIELD(model.freeze_router)),
     "models with experts: do not train the routers"},
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
    if (ScalarText(given) == "nf4") {
      throw BadValue("nf4 is not supported: use int4, which takes as much memory and can be "
                     "served");
    }
    choose(spec, given);
  };
  return value;
}

std::vector<SpecKey> LoraKeys() {
  return {
    {{"lora.enable", "lora.enable_lora"}, Bool(FIELD(lora.enable)),
     "train an adapter; the model's own weights stay frozen",
     "true if another `lora` key is given"},
    {{"lora.rank", "lora.lora_rank"}, Integer(FIELD(lora.rank), 1, 4096),
     "rank of every adapted layer"},
    {{"lora.alpha", "lora.lora_alpha"}, Number(FIELD(lora.alpha), 1e-6, 1e6),
     "scale of the adapter: its output is multiplied by alpha / rank"},
    {{"lora.rank_stabilized", "lora.use_rslora"}, Bool(FIELD(lora.rank_stabilized)),
     "multiply by alpha / sqrt(rank) instead"},
    {{"lora.module_path", "lora.lora_module_path"}, Text(FIELD(lora.module_path)),
     "regular expression on module paths, in the form of transformers or MaxText",
     "every linear layer except the head and routers"},
    {{"lora.match"},
     Choice<bool>(FIELD(lora.full_match), {{"search", false}, {"full", true}}),
     "`full`: module_path must match the whole path"},
    {{"lora.unmatched"},
     Choice<Unmatched>(FIELD(lora.unmatched), {{"error", Unmatched::kError},
                                               {"note", Unmatched::kNote}}),
     "reaction to an alternative of module_path that matches no layer: end the run before step "
     "0, or note and ignore it"},
    {{"lora.init"},
     Choice<LoraInit>(FIELD(lora.init), {{"kaiming_uniform", LoraInit::kKaimingUniform},
                                         {"he_uniform", LoraInit::kHeUniform}}),
     "initial values of A; B starts at zero"},
    {{"lora.dropout", "lora.lora_dropout"}, Number(FIELD(lora.dropout), 0, 0.99),
     "fraction of A's inputs zeroed in training, drawn per layer"},
    {{"lora.base_dtype", "lora.lora_weight_qtype", "lora.base_qtype"}, BaseType(),
     "weight type of the frozen base; auto: `precision.compute`, or the quantised blocks of a "
     "GGUF file"},
    {{"lora.load_path", "lora.lora_restore_path"}, Path(FIELD(lora.load_path)),
     "PEFT directory of an adapter to continue training; rank, alpha and layers come from it",
     "none"},
    {{"lora.export"},
     Choice<bool>(FIELD(lora.export_merged), {{"adapter", false}, {"merged", true}}),
     "`merged`: also write hf/, the model with the adapter merged in"},
    {{"lora.lora_tile_size"},
     {[](TrainSpec&, const GivenValue& given) {
        if (ParseInteger(ScalarText(given)) != 32) {
          throw BadValue("must be 32, the number of weights that share a scale");
        }
      }, nullptr, "32"},
     "weights that share a scale; must be 32", "32"},
  };
}

template <class Field>
SpecValue Container(Field field) {
  return Choice<RowContainer>(field, {{"auto", RowContainer::kAuto},
                                      {"json", RowContainer::kJson},
                                      {"csv", RowContainer::kCsv},
                                      {"parquet", RowContainer::kParquet}});
}

std::vector<SpecKey> DataKeys() {
  return {
    {{"data.train", "dataset_path", "train_files", "data.path", "hf_train_files"},
     Paths(FIELD(data.train)),
     "text file with samples between delimiter lines, files of rows (JSONL, JSON, CSV, Parquet; "
     "a directory, a pattern with `*` and `?`, or a list), or prepared file (`tandem data prepare`)",
     kRequired},
    {{"data.eval", "eval_dataset_path", "eval_files", "hf_eval_files"}, Paths(FIELD(data.eval)),
     "data of the evaluations, in the same forms", "none"},
    {{"data.hf_path", "hf_path"}, Path(FIELD(data.hf_path)),
     "directory of a data set in the hub's layout: default of `data.train`, and with "
     "`data.eval_split` of `data.eval`",
     "none"},
    {{"data.train_split", "train_split"}, Text(FIELD(data.train_split)),
     "split of the directory to train on", "the only split"},
    {{"data.eval_split", "eval_split", "hf_eval_split"}, Text(FIELD(data.eval_split)),
     "split of the directory for `data.eval`", "the only split"},
    {{"data.container"}, Container(FIELD(data.container)),
     "container of the rows of data.train; auto: by the file's extension, JSON without one"},
    {{"data.eval_container"}, Container(FIELD(data.eval_container)),
     "container of the rows of data.eval, as data.container"},
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
     "format of a row, see data/README.md; auto: detected from the file name and the first rows"},
    {{"data.columns", "train_data_columns"}, Names(FIELD(data.columns)),
     "names of the format's columns, in the format's order", "the format's"},
    {{"data.eval_columns", "eval_data_columns"}, Names(FIELD(data.eval_columns)),
     "names of the columns of data.eval", "data.columns"},
    {{"data.train_on_completion_only", "sft_train_on_completion_only"},
     {[](TrainSpec& spec, const GivenValue& given) {
        spec.data.train_on_completion_only = ParseBool(ScalarText(given));
      }, [](const TrainSpec& spec) {
        const auto& value = spec.data.train_on_completion_only;
        return std::string(!value ? "" : *value ? "true" : "false");
      }, "true or false"},
     "learn the answers only, not the prompts", "true; false for train.pretrain"},
    {{"data.apply_template"},
     Choice<ApplyTemplate>(FIELD(data.apply_template), {{"auto", ApplyTemplate::kAuto},
                                                        {"always", ApplyTemplate::kAlways},
                                                        {"never", ApplyTemplate::kNever}}),
     "render alpaca rows and plain prompts as chats; auto: alpaca rows only, if the model has a "
     "chat template"},
    {{"data.turns"},
     Choice<Turns>(FIELD(data.turns), {{"auto", Turns::kAuto},
                                       {"together", Turns::kTogether},
                                       {"apart", Turns::kApart}}),
     "a chat is one sample, or each answer is one; auto: one sample, or apart if the template "
     "rewrites earlier turns"},
    {{"data.on_bad_row"},
     Choice<OnBadRow>(FIELD(data.on_bad_row), {{"error", OnBadRow::kError},
                                               {"skip", OnBadRow::kSkip}}),
     "reaction to bad rows: end the run before step 0, or skip them"},
    {{"data.template_unix_s"}, Integer(FIELD(data.template_unix_s), 0, 0x1p40),
     "time that chat templates see, in seconds since 1970; fixed, so that samples never change"},
    {{"data.delimiter"}, Text(FIELD(data.delimiter)), "line between samples"},
    {{"data.header"},
     Choice<Header>(FIELD(data.header),
                    {{"none", Header::kNone}, {"content_words", Header::kContentWords}}),
     "text put before every sample, see data/README.md"},
    {{"data.add_bos", "add_bos"}, Bool(FIELD(data.add_bos)), "samples begin with bos_token"},
    {{"data.add_eos", "add_eos"}, Bool(FIELD(data.add_eos)), "samples end with eos_token"},
    {{"data.eos_token"}, Text(FIELD(data.eos_token)), "text of that token",
     "the tokenizer's, else the delimiter"},
    {{"data.bos_token"}, Text(FIELD(data.bos_token)), "text of that token",
     "the tokenizer's, else eos_token"},
    {{"data.max_target_length", "max_target_length"},
     Integer(FIELD(data.max_target_length), 2, 1 << 24),
     "tokens per packed row; with train.dpo per answer with its prompt, and a row holds two"},
    {{"data.packing", "grain_packing_type"},
     Choice<Packing>(FIELD(data.packing), {{"none", Packing::kNone},
                                           {"concat_then_split", Packing::kConcatThenSplit},
                                           {"first_fit", Packing::kFirstFit},
                                           {"best_fit", Packing::kBestFit}}),
     "placement of samples in rows"},
    {{"packing"},
     {[](TrainSpec& spec, const GivenValue& given) {
        if (!ParseBool(ScalarText(given))) spec.data.packing = Packing::kNone;
      }, nullptr, "true or false"},
     "MaxText's switch: false means `data.packing` none", "true"},
    {{"data.overflow"},
     Choice<Overflow>(FIELD(data.overflow), {{"truncate", Overflow::kTruncate},
                                             {"truncate_left", Overflow::kTruncateLeft},
                                             {"drop", Overflow::kDrop},
                                             {"error", Overflow::kError},
                                             {"split", Overflow::kSplit}}),
     "handling of samples longer than a row; truncate_left keeps their ends"},
    {{"data.max_segments_per_seq", "max_segments_per_seq"},
     IntegerOrMinusOne(FIELD(data.max_segments_per_seq), 1 << 20), "most samples in a row; 0: 64"},
    {{"data.shuffle", "enable_data_shuffling"}, Bool(FIELD(data.shuffle)),
     "draw a new order of samples in every epoch"},
    {{"data.seed", "data_shuffle_seed"}, Integer(FIELD(data.seed), 0, kBig),
     "seed of the order and of dropout"},
    {{"data.num_epoch", "num_epoch"}, Integer(FIELD(data.num_epoch), 0, kBig),
     "epochs after which the run ends; 0: unlimited"},
  };
}

std::vector<SpecKey> DpoKeys() {
  return {
    {{"dpo.beta", "dpo.dpo_beta", "dpo_beta"}, Number(FIELD(dpo.loss.beta), 1e-6, 100),
     "train.dpo: weight of the distance from the reference"},
    {{"dpo.label_smoothing", "dpo.dpo_label_smoothing", "dpo_label_smoothing"},
     Number(FIELD(dpo.loss.label_smoothing), 0, 0.499),
     "train.dpo: assumed fraction of pairs with a wrong preference"},
    {{"dpo.max_prompt_length", "max_prompt_length"},
     Integer(FIELD(dpo.max_prompt_length), 0, 1 << 24),
     "train.dpo: longest prompt in tokens; longer ones keep their last tokens; 0: no limit"},
    {{"dpo.algo"},
     {[](TrainSpec&, const GivenValue& given) {
        const std::string& word = ScalarText(given);
        if (word == "orpo") throw BadValue("orpo is not supported: use dpo");
        if (word != "dpo") throw BadValue("must be dpo, got \"" + word + "\"");
      }, nullptr, "dpo"},
     "MaxText's choice of a loss; must be dpo", "dpo"},
  };
}

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
                                                         {"sgd", OptimizerKind::kSgd}}),
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
     "decay of the second moment"},
    {{"train.optimizer.eps", "adam_eps"}, Number(FIELD(train.optimizer.eps), 0, 1),
     "added to the root of the second moment"},
    {{"train.optimizer.eps_root", "adam_eps_root"}, Number(FIELD(train.optimizer.eps_root), 0, 1),
     "added under the root of the second moment"},
    {{"train.optimizer.weight_decay", "adam_weight_decay"},
     Number(FIELD(train.optimizer.weight_decay), 0, 100),
     "weight decay of adamw, multiplied by the learning rate"},
    {{"train.optimizer.decay_exclude", "adamw_mask"}, DecayExclude(),
     "regular expressions on the names of weights without decay; []: all weights decay, as in "
     "MaxText",
     "norm scales and biases"},
    {{"train.gradient_clipping_threshold", "gradient_clipping_threshold"},
     Number(FIELD(train.optimizer.clip_norm), 0, kBig),
     "largest norm of all gradients together; larger ones are scaled down; 0: off"},
  };
}

// MaxText's switches. With false, MaxText applies an update that spoils the weights; we skip the
// step instead.
SpecValue AbortSwitch() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            if (ParseBool(ScalarText(given)) || spec.train.on_nan != OnNan::kAbort) return;
            spec.train.on_nan = OnNan::kSkip;
          },
          nullptr, "true or false"};
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
    {{"train.sample.seed"}, Integer(FIELD(train.sample.seed), 0, kBig), "seed of sampling"},
  };
}

std::vector<SpecKey> CheckpointKeys() {
  return {
    {{"checkpoint.period", "checkpoint_period"}, Integer(FIELD(checkpoint.period), 0, kBig),
     "steps between checkpoints; 0: only at the end and when stopped"},
    {{"checkpoint.keep", "max_num_checkpoints_to_keep"},
     Integer(FIELD(checkpoint.keep), 1, 1 << 20), "number of newest checkpoints to keep"},
    {{"checkpoint.resume"}, Bool(FIELD(checkpoint.resume)),
     "resume from the newest valid checkpoint in the run's directory; false: move existing "
     "checkpoints aside"},
    {{"checkpoint.resume_on_changed_data", "resume_on_changed_data"},
     Choice<OnChangedData>(FIELD(checkpoint.on_changed_data),
                           {{"error", OnChangedData::kError},
                            {"continue", OnChangedData::kContinue}}),
     "reaction to training data that has changed since the checkpoint: end the run before its "
     "first step, or warn"},
    {{"checkpoint.on_unreadable"},
     Choice<OnUnreadable>(FIELD(checkpoint.on_unreadable), {{"error", OnUnreadable::kError},
                                                            {"restart", OnUnreadable::kRestart}}),
     "reaction if no checkpoint is readable: end with an error that names them, or move them "
     "aside and restart at step 0"},
    {{"checkpoint.async", "async_checkpointing"}, Bool(FIELD(checkpoint.async)),
     "write checkpoints during training, from a copy of weights and moments"},
    {{"checkpoint.export"}, Bool(FIELD(checkpoint.export_model)),
     "write hf/ or adapter/ at the end"},
    {{"checkpoint.export_best"}, Bool(FIELD(checkpoint.export_best)),
     "write best/ after each evaluation that is the best so far"},
    {{"checkpoint.export_every"}, Integer(FIELD(checkpoint.export_every), 0, kBig),
     "steps between permanent exports to exports/step-N, each with an evaluation; 0: none"},
    {{"checkpoint.export_epochs"}, Bool(FIELD(checkpoint.export_epochs)),
     "export to exports/step-N after each epoch"},
  };
}

// One size of a mesh axis: a number of ranks, or -1.
template <class Field>
SpecValue AxisSizeOf(Field field) {
  return {[=](TrainSpec& spec, const GivenValue& given) {
            const int64_t size = ParseInteger(ScalarText(given));
            CheckRange(static_cast<double>(size), -1, 1 << 20);
            if (size == 0) throw BadValue("must be a number of ranks, or -1 for the rest; got 0");
            field(spec) = size;
          },
          [=](const TrainSpec& spec) {
            return field(spec) ? std::to_string(*field(spec)) : std::string();
          },
          "a number of ranks, or -1"};
}

// An axis over which training cannot split a run yet.
template <class Field>
SpecValue AxisOfOne(Field field) {
  SpecValue value = AxisSizeOf(field);
  value.set = [set = value.set](TrainSpec& spec, const GivenValue& given) {
    if (ParseInteger(ScalarText(given)) > 1) {
      throw BadValue("more than 1 rank on this axis is not supported: set 1, and "
                     "ici_data_parallelism=-1 to share the rows of a step");
    }
    set(spec, given);
  };
  value.allowed = "1 or -1";
  return value;
}

SpecValue MeshValue() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            std::string text;
            for (const std::string& word : given.words) text += (text.empty() ? "" : ",") + word;
            if (text == "none" || text == "None" || text == "null") text.clear();
            const MeshRequest mesh = ParseMesh(text);
            if (mesh.data.ici) spec.parallel.mesh.data.ici = mesh.data.ici;
            if (mesh.fsdp.ici) spec.parallel.mesh.fsdp.ici = mesh.fsdp.ici;
            if (mesh.tensor.ici) spec.parallel.mesh.tensor.ici = mesh.tensor.ici;
          },
          [](const TrainSpec& spec) { return ShowMesh(spec.parallel.mesh); },
          "sizes of the axes data, fsdp and tensor, such as data=2,fsdp=1"};
}

std::vector<SpecKey> ParallelKeys() {
  return {
    {{"parallel.mesh", "mesh"}, MeshValue(),
     "grid of ranks, in one value; the keys of single axes set the same", "data takes all ranks"},
    {{"parallel.data", "ici_data_parallelism"}, AxisSizeOf(FIELD(parallel.mesh.data.ici)),
     "ranks that share the rows of a step; -1: the rest", "the rest"},
    {{"parallel.fsdp", "ici_fsdp_parallelism"}, AxisOfOne(FIELD(parallel.mesh.fsdp.ici)),
     "ranks that share the parameters; more than 1 is not supported yet", "1"},
    {{"parallel.tensor", "ici_tensor_parallelism"}, AxisOfOne(FIELD(parallel.mesh.tensor.ici)),
     "ranks that share each matrix; more than 1 is not supported yet", "1"},
    {{"parallel.dcn_data", "dcn_data_parallelism"}, AxisSizeOf(FIELD(parallel.mesh.data.dcn)),
     "the same across hosts; both numbers are multiplied", "1"},
    {{"parallel.dcn_fsdp", "dcn_fsdp_parallelism"}, AxisOfOne(FIELD(parallel.mesh.fsdp.dcn)),
     "the same for `parallel.fsdp`", "1"},
    {{"parallel.dcn_tensor", "dcn_tensor_parallelism"},
     AxisOfOne(FIELD(parallel.mesh.tensor.dcn)), "the same for `parallel.tensor`", "1"},
    {{"parallel.world_invariant", "world_invariant"},
     Integer(FIELD(parallel.world_invariant), 0, 1 << 16),
     "number of equal parts of a step's rows, a power of two, whose gradients are added in a fixed "
     "tree: 1, 2, 4 … ranks then give the same bits; 0: off"},
    {{"parallel.shard_optimizer_over_data", "shard_optimizer_over_data"},
     Bool(FIELD(parallel.shard_optimizer)),
     "each rank keeps and updates only its part of the moments (ZeRO-1), which changes no bit"},
    {{"parallel.elastic", "elastic"}, Bool(FIELD(parallel.elastic)),
     "resume a checkpoint of another number of ranks; an axis of -1 is computed again"},
    {{"parallel.overlap"}, Bool(FIELD(parallel.overlap)),
     "sum gradients over ranks during the backward pass, which changes no bit"},
    {{"parallel.bucket_bytes"}, Integer(FIELD(parallel.bucket_bytes), 1, 0x1p40),
     "least bytes of gradients that `parallel.overlap` sums at once"},
    {{"parallel.rank_timeout_s"}, Number(FIELD(parallel.rank_timeout_s), 0, 1e9),
     "seconds without an answer of another rank after which the run ends; 0: no limit"},
  };
}

SpecValue Compute() {
  using engine::DType;
  SpecValue value = Choice<DType>(FIELD(compute), {{"bf16", DType::kBF16},
                                                   {"bfloat16", DType::kBF16},
                                                   {"f32", DType::kF32},
                                                   {"float32", DType::kF32}});
  value.set = [choose = value.set](TrainSpec& spec, const GivenValue& given) {
    const std::string& word = ScalarText(given);
    if (word == "int8" || word == "int4") {
      throw BadValue(word + " weights can be served but not trained: train in bf16 and serve the " +
                     "result with --dtype " + word +
                     ", or train an adapter on them with lora.base_dtype: " + word);
    }
    choose(spec, given);
  };
  return value;
}

std::vector<SpecKey> MachineKeys() {
  return {
    {{"precision.compute", "dtype"}, Compute(), "type of computation and of the export"},
    {{"resources.threads"}, Integer(FIELD(resources.threads), 0, 1024), "compute threads",
     "physical cores"},
    {{"resources.lower_priority"}, Bool(FIELD(resources.lower_priority)),
     "run at the lowest priority on the machine"},
    {{"resources.memory_max_bytes"}, Integer(FIELD(resources.memory_max_bytes), 0, 0x1p52),
     "memory limit; a run that needs more is refused; with lower_priority also the limit of the "
     "process's data",
     "the machine's available memory at the start of the run"},
    {{"observe.log_period", "log_period"}, Integer(FIELD(log_period), 1, kBig),
     "steps between log lines"},
    {{"observe.profiler", "profiler"},
     Choice<bool>(FIELD(profiler.enabled),
                  {{"none", false}, {"", false}, {"trace", true}, {"xplane", true}}),
     "`trace`: write profile/trace.json (for ui.perfetto.dev) and profile/summary.txt for some "
     "steps"},
    {{"observe.skip_first_n_steps", "skip_first_n_steps_for_profiler"},
     Integer(FIELD(profiler.skip_first_n_steps), 0, kBig), "steps of the process before the trace"},
    {{"observe.profiler_steps", "profiler_steps"}, Integer(FIELD(profiler.steps), 1, 10000),
     "number of traced steps"},
    {{"metrics.csv"}, Bool(FIELD(metrics.csv)),
     "write metrics.csv: one row per step and evaluation"},
    {{"metrics.tensorboard", "enable_tensorboard"}, Bool(FIELD(metrics.tensorboard)),
     "write tensorboard/: event files with the same scalars"},
    {{"metrics.plot"}, Bool(FIELD(metrics.plot)),
     "write loss.svg: training and validation loss, redrawn at evaluations and at the end"},
  };
}
// clang-format on
#undef FIELD

std::vector<SpecKey> AllKeys() {
  std::vector<SpecKey> all;
  for (const auto section :
       {RunKeys, ModelKeys, LoraKeys, DataKeys, DpoKeys, TrainKeys, GuardKeys, OptimizerKeys,
        RematKeys, SampleKeys, CheckpointKeys, ParallelKeys, MachineKeys}) {
    for (SpecKey& key : section()) all.push_back(std::move(key));
  }
  return all;
}

// A list item, broken at spaces, with further lines indented.
std::string Wrapped(const std::string& text) {
  std::string out;
  size_t line_bytes = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (line_bytes > 0 && line_bytes + 1 + word.size() > kMarkdownColumns) {
      out += "\n ";
      line_bytes = 1;
    }
    if (line_bytes > 0) {
      out += ' ';
      ++line_bytes;
    }
    out += word;
    line_bytes += word.size();
    at = end + 1;
  }
  return out;
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

std::string MarkdownEntry(const SpecKey& key) {
  std::string text = "- `" + key.names[0] + "` (";
  for (size_t i = 1; i < key.names.size(); ++i) {
    text.append(i > 1 ? ", " : "also ").append("`" + key.names[i] + "`");
  }
  if (key.names.size() > 1) text += "; ";
  const std::string standard = DefaultOf(key);
  const bool is_value = key.default_text.empty() && standard != "none";
  if (standard == kRequired) {
    text += "required";
  } else {
    text += "default: " + (is_value ? "`" + standard + "`" : standard);
  }
  text += "): " + key.effect;
  const std::string& allowed = key.value.allowed;
  if (allowed.starts_with("one of")) text += "; " + allowed;
  return Wrapped(text);
}

}  // namespace tandem::training
