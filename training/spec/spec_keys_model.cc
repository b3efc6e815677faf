// Keys of the run, its model and its adapter.

#include "engine/model/families/family.h"
#include "training/spec/spec_sections.h"

namespace tandem::training {

// clang-format off
namespace {

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

// "name=number" words. The reader turns a mapping into them.
template <class Field>
SpecValue LoraPatternValue(Field field, double min, double max, bool whole) {
  return {[=](TrainSpec& spec, const GivenValue& given) {
            std::vector<std::pair<std::string, double>> entries;
            for (const std::string& word : given.words) {
              const size_t equals = word.rfind('=');
              if (equals == std::string::npos || equals == 0) {
                throw BadValue("must be a mapping of module names to numbers, or a list of "
                               "name=number, got \"" + word + "\"");
              }
              const std::string number = word.substr(equals + 1);
              const double value =
                  whole ? static_cast<double>(ParseInteger(number)) : ParseNumber(number);
              CheckRange(value, min, max);
              entries.emplace_back(word.substr(0, equals), value);
            }
            field(spec) = std::move(entries);
          },
          [=](const TrainSpec& spec) {
            std::vector<std::string> words;
            for (const auto& [name, value] : field(spec)) words.push_back(name + "=" + ShowNumber(value));
            return ShowList(words);
          },
          "a mapping of module names to numbers"};
}

}  // namespace

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
                                                 {"dpo", "train.dpo"},
                                                 {"train.distill", "train.distill"},
                                                 {"distill", "train.distill"}}),
     "task of the run: pretrain learns all text, sft learns the answers in rows, dpo learns from "
     "pairs of answers, distill learns a served teacher's distribution of the tokens that sft "
     "learns"},
    {{"use_sft"}, KindSwitch("train.sft"),
     "MaxText's switch: true means `kind` train.sft", "false"},
    {{"use_dpo"}, KindSwitch("train.dpo"),
     "MaxText's switch: true means `kind` train.dpo", "false"},
    {{"run_name"}, Text(FIELD(run_name)),
     "the run works in `base_output_directory`/`run_name` and resumes from its checkpoints there"},
    {{"base_output_directory"}, Path(FIELD(base_output_directory)),
     "see `run_name`; a URL such as `s3://BUCKET/runs` uploads each checkpoint"},
    {{"hf_access_token"},
     {[](TrainSpec& spec, const GivenValue& given) { spec.hub_token = ScalarText(given); }, nullptr,
      "text"},
     "token for models of the hub, never shown or recorded; prefer HF_TOKEN, since other "
     "processes can read command lines",
     "HF_TOKEN"},
  };
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
    {{"lora.use_dora", "lora.dora"}, Bool(FIELD(lora.use_dora)),
     "DoRA: also train the length of each row of the adapted layers"},
    {{"lora.embeddings"}, Bool(FIELD(lora.embeddings)),
     "also adapt embeddings and the head, where module_path matches them; without dropout"},
    {{"lora.modules_to_save"}, List(FIELD(lora.modules_to_save)),
     "PEFT's: modules that the adapter holds as whole trained copies, such as `lm_head`; a name is "
     "a path or its end", "none"},
    {{"lora.rank_pattern"}, LoraPatternValue(FIELD(lora.rank_pattern), 1, 4096, true),
     "PEFT's: other ranks by module name, `{q_proj: 8}` or a list of `q_proj=8`; a name is a path or "
     "its end"},
    {{"lora.alpha_pattern"}, LoraPatternValue(FIELD(lora.alpha_pattern), 1e-6, 1e6, false),
     "PEFT's: other alphas by module name, in the same forms"},
    {{"lora.module_path", "lora.lora_module_path"}, Text(FIELD(lora.module_path)),
     "regular expression on module paths, in the form of transformers or MaxText",
     "every linear layer except routers, and with `lora.embeddings` embeddings and the head"},
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
// clang-format on

}  // namespace tandem::training
