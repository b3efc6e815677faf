// Selection of layers for adapters, and resuming from an existing adapter.

#include "training/lora/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/model/weight_uses.h"
#include "tests/support/adapters.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"
#include "training/lora/module_names.h"
#include "training/lora/pattern_branches.h"
#include "training/run/run.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

std::vector<LoraTarget> Choose(std::string_view family, const engine::ModelConfig& config,
                               const std::string& module_path, bool full_match = false,
                               Unmatched unmatched = Unmatched::kError) {
  LoraOptions options;
  options.module_path = module_path;
  options.full_match = full_match;
  options.unmatched = unmatched;
  return ChooseLoraTargets(options, engine::FindFamilyByName(family), config);
}

int64_t Parameters(std::string_view family, const engine::ModelConfig& config,
                   const std::vector<LoraTarget>& targets) {
  int64_t count = 0;
  for (const engine::WeightSpec& spec :
       LoraSpecs(engine::FindFamilyByName(family).list_weights(config), targets)) {
    count += spec.n * spec.k;
  }
  return count;
}

std::string ErrorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "was not refused";
  return {};
}

constexpr const char* kTutorial = ".*mha|.*linear1|.*linear2";

engine::ModelConfig TutorialConfig() {
  engine::ModelConfig config = bench::TinyMiniGptConfig();
  config.n_layers = 4;
  config.hidden_dim = config.ffn_dim = 256;
  config.attention.n_heads = config.attention.n_kv_heads = 8;
  config.attention.head_dim = 32;
  return config;
}

// The tutorial matches whole paths, so its ".*mha" reaches no layer of mha. Rank 16 then has 65,536
// parameters, and 196,608 with matches on a part of the path.
TEST(LoraTargets, OfTheTutorialsMiniGptAreCountedAsThere) {
  const engine::ModelConfig config = TutorialConfig();
  const std::string tutorial = kTutorial;

  const auto full = Choose("minigpt", config, tutorial, true, Unmatched::kNote);
  EXPECT_EQ(full.size(), 8u);
  EXPECT_EQ(Parameters("minigpt", config, full), 65'536);
  const auto search = Choose("minigpt", config, tutorial);
  EXPECT_EQ(search.size(), 24u);
  EXPECT_EQ(Parameters("minigpt", config, search), 196'608);
  EXPECT_EQ(DescribeTargets(full, engine::FindFamilyByName("minigpt").list_weights(config)).size(),
            2u);
}

TEST(LoraTargets, AreFoundByThePathsOfTransformersAndOfMaxText) {
  const engine::ModelConfig llama = bench::TinyLlamaConfig();  // two layers
  for (const char* path : {R"(model\.layers\.\d+\.mlp\.up_proj)", "model/layers/[01]/mlp/up_proj",
                           "decoder/layers/mlp/wi_1", "decoder/layers_[0-9]/mlp/wi_1"}) {
    EXPECT_EQ(Choose("llama", llama, path, true).size(), 2u) << path;
  }
  EXPECT_EQ(Choose("llama", llama, "decoder/layers_1/.*", true).size(), 7u);
  EXPECT_EQ(Choose("llama", llama, "self_attention/(query|key|value|out)").size(), 8u);
  EXPECT_EQ(NamesOfModule(engine::FindFamilyByName("gemma2"), "model.layers.5.self_attn.q_proj"),
            (std::vector<std::string>{"model.layers.5.self_attn.q_proj",
                                      "model/layers/5/self_attn/q_proj",
                                      "decoder/layers/self_attention_global/query",
                                      "decoder/layers_2/self_attention_global/query"}));
  EXPECT_EQ(
      NamesOfModule(engine::FindFamilyByName("gemma3"), "model.layers.8.mlp.down_proj").back(),
      "decoder/layers/layers_2/mlp/wo");
  EXPECT_EQ(NamesOfModule(engine::FindFamilyByName("llama"), "lm_head").size(), 2u);
}

// One name of MaxText stands for the same layer of all experts.
TEST(LoraTargets, ExpertsAreFoundByTheExpressionsThatMaxTextRecommends) {
  struct Found {
    const char* family;
    const char* expression;
    size_t n_targets;
  };
  // Tiny models have 20 experts. MaxText names no attention of DeepSeek's latent of queries.
  for (const Found& found :
       {Found{"gpt_oss",
              "decoder/layers/.*(GptOssAttention/(query|key|value|out)|GptOssMlp/(wi_0|wi_1|wo))",
              2 * (4 + 3 * 20)},
        {"gpt_oss", "decoder/layers/layers_1/GptOssMlp/wi_0", 20},
        {"gpt_oss", "GptOssMlp/gate", 2},
        {"mixtral", "decoder/layers/MoeBlock_0/(wi_0|wi_1|wo)", 2 * 3 * 20},
        {"mixtral", "decoder/layers_1/MoeBlock_0/wo", 20},
        {"qwen3_moe", "decoder/layers/(mlp|moe_block)/wi_1", 1 + 20},
        {"deepseek_v3",
         "decoder/(dense_layers|moe_stack)/self_attention/(out|wkv_a|wkv_b)|"
         "decoder/(dense_layers|moe_stack)/(mlp|shared_experts)/(wi_0|wi_1|wo)",
         3 * 3 + 3 * 3},
        {"deepseek_v3", "decoder/dense_layers_0/.*", 5 + 3},
        {"deepseek_v3", "decoder/moe_layers_1/DeepSeekMoeBlock_0/MoeBlock_0/wi_0", 20},
        {"deepseek_v2", "decoder/moe_layers/.*/MoeBlock_0/gate", 2}}) {
    SCOPED_TRACE(std::string(found.family) + " " + found.expression);
    EXPECT_EQ(Choose(found.family, bench::TinyModelConfig(found.family), found.expression).size(),
              found.n_targets);
  }
}

TEST(LoraTargets, ThatMatchNothingAreAnErrorWithTheNearestNames) {
  const engine::ModelConfig llama = bench::TinyLlamaConfig();
  const std::string typo = ErrorOf([&] { Choose("llama", llama, "upproj"); });
  EXPECT_NE(typo.find("matches no linear layer; the nearest names are model.layers.*.mlp.up_proj"),
            std::string::npos)
      << typo;
  const std::string embedding = ErrorOf([&] { Choose("llama", llama, "embed_tokens"); });
  EXPECT_NE(
      embedding.find(
          "matches only model.embed_tokens, which cannot have an adapter without lora.embeddings"),
      std::string::npos)
      << embedding;
}

TEST(LoraTargets, OfEmbeddingsAndTheHeadNeedTheirKey) {
  LoraOptions options;
  options.embeddings = true;
  for (const bool tied : {false, true}) {
    engine::ModelConfig llama = bench::TinyLlamaConfig();
    llama.tied_embeddings = tied;
    const auto& family = engine::FindFamilyByName("llama");
    options.module_path = "q_proj|embed_tokens|lm_head";
    const auto targets = ChooseLoraTargets(options, family, llama);
    ASSERT_EQ(targets.size(), 4u) << tied;
    EXPECT_EQ(std::count_if(targets.begin(), targets.end(),
                            [](const LoraTarget& one) { return one.form == LoraForm::kHead; }),
              1);
    std::string names;
    for (const auto& spec : LoraSpecs(family.list_weights(llama), targets))
      names += spec.name + " ";
    EXPECT_NE(names.find("base_model.model.lm_head.lora_A.weight"), std::string::npos) << names;
    EXPECT_NE(names.find("base_model.model.model.embed_tokens.lora_embedding_B"), std::string::npos)
        << names;
    options.module_path = "q_proj";
    EXPECT_NE(ErrorOf([&] {
                ChooseLoraTargets(options, family, llama);
              }).find("lora.embeddings: lora.module_path \"q_proj\" names neither"),
              std::string::npos);
  }
}

TEST(LoraTargets, TablesOfPositionsArePassedOver) {
  LoraOptions options;
  options.embeddings = true;
  options.module_path = "c_attn|wte|wpe";
  const auto& family = engine::FindFamilyByName("gpt2");
  const engine::ModelConfig config = bench::TinyModelConfig("gpt2");
  const std::vector<std::string> positions = {"transformer.wpe"};
  EXPECT_EQ(TargetsPassedOver(options, family, config), positions);
  options.embeddings = false;
  EXPECT_EQ(TargetsPassedOver(options, family, config).size(), 2u);
}

TEST(LoraTargets, PatternsNameTheUseOfATiedTableThatIsAdapted) {
  const auto& family = engine::FindFamilyByName("llama");
  engine::ModelConfig llama = bench::TinyLlamaConfig();
  llama.tied_embeddings = true;
  LoraOptions options;
  options.embeddings = true;
  options.module_path = "lm_head";
  options.rank_pattern = {{"lm_head", 8}};
  EXPECT_EQ(ChooseLoraTargets(options, family, llama).at(0).rank, 8);
  const auto refused = [&](const std::string& name) {
    options.rank_pattern = {{name, 8}};
    return ErrorOf([&] { ChooseLoraTargets(options, family, llama); });
  };
  EXPECT_NE(refused("embed_tokens").find("is no adapted module"), std::string::npos);
  options.modules_to_save = {"model.norm"};
  EXPECT_NE(refused("model.norm").find("is no adapted module"), std::string::npos);
}

TEST(LoraTargets, OfWholeModulesAreFoundByTheEndsOfTheirPaths) {
  const auto& family = engine::FindFamilyByName("llama");
  engine::ModelConfig llama = bench::TinyLlamaConfig();
  LoraOptions options;
  options.modules_to_save = {"norm", "lm_head", "mlp.up_proj"};
  const auto targets = ChooseLoraTargets(options, family, llama);
  // The final norm, the head and two layers' products, which have no A and B.
  const auto is_copy = [](const LoraTarget& one) { return one.rank == 0; };
  EXPECT_EQ(std::count_if(targets.begin(), targets.end(), is_copy), 4);
  EXPECT_EQ(targets.size(), 4u + 2 * 6);

  const std::string config = LoraConfigOf(options, targets, family.list_weights(llama), "base");
  const auto json = nlohmann::json::parse(config);
  EXPECT_EQ(json["modules_to_save"].size(), 4u);
  EXPECT_EQ(json["target_modules"].size(), 12u);

  const auto error = [&](const std::string& name) {
    options.modules_to_save = {name};
    return ErrorOf([&] { ChooseLoraTargets(options, family, llama); });
  };
  EXPECT_NE(error("score").find("\"score\" is no module"), std::string::npos);
  options.module_path = "up_proj";
  EXPECT_NE(error("up_proj").find("lora.module_path must not match it"), std::string::npos);
}

TEST(LoraTargets, OfExpertsHaveNeitherDoraNorCopies) {
  const auto& family = engine::FindFamilyByName("mixtral");
  const engine::ModelConfig config = bench::TinyModelConfig("mixtral");
  LoraOptions options;
  options.use_dora = true;
  EXPECT_NE(ErrorOf([&] { ChooseLoraTargets(options, family, config); }).find("is an expert"),
            std::string::npos);
  options.module_path = "q_proj";
  EXPECT_EQ(ChooseLoraTargets(options, family, config).at(0).form, LoraForm::kDora);
  const auto specs = family.list_weights(config);
  const engine::WeightUses uses = engine::UsesOf(family, config, specs);
  const auto first = std::find(uses.of.begin(), uses.of.end(), engine::WeightUse::kExpert);
  ASSERT_NE(first, uses.of.end());
  const std::string expert =
      engine::ModulePath(specs[static_cast<size_t>(first - uses.of.begin())]);
  options.modules_to_save = {expert};
  EXPECT_NE(ErrorOf([&] { ChooseLoraTargets(options, family, config); }).find("cannot hold"),
            std::string::npos);
}

// The preset has the tutorial's numbers and expression, and only notes alternatives without a
// match.
TEST(LoraTargets, OfTheTutorialsPresetAreTheTutorials) {
  const TrainSpec spec =
      LoadTrainSpec(tests::SourceDir() / "config/presets/minigpt-shakespeare-lora.yaml", {});
  EXPECT_EQ(spec.lora.module_path, kTutorial);
  EXPECT_EQ(spec.lora.rank, 16);
  EXPECT_EQ(spec.lora.alpha, 2.0);
  const engine::FamilySpec& family = engine::FindFamilyByName("minigpt");

  const auto targets = ChooseLoraTargets(spec.lora, family, TutorialConfig());

  EXPECT_EQ(Parameters("minigpt", TutorialConfig(), targets), 65'536);
  EXPECT_EQ(targets[0].scale, 0.125f);
  const auto said = UnmatchedBranches(spec.lora, family, TutorialConfig());
  ASSERT_EQ(said.size(), 3u);
  EXPECT_EQ(said[0],
            "\".*mha\" matches no linear layer as its whole path (lora.match: full), but 16 layers "
            "as a part of it: write \".*mha.*\" or set lora.match: search");
  EXPECT_EQ(said[1], "\".*linear1\" matches 4 layers");
  EXPECT_EQ(said[2], "\".*linear2\" matches 4 layers");
}

TEST(LoraTargets, AnAlternativeThatMatchesNothingIsAnErrorUnlessItIsToBeNoted) {
  const std::string tutorial =
      ErrorOf([&] { Choose("minigpt", TutorialConfig(), kTutorial, true); });
  for (const char* part :
       {"lora.module_path: in \".*mha|.*linear1|.*linear2\" \".*mha\" matches no",
        "write \".*mha.*\" or set lora.match: search", "\".*linear2\" matches 4 layers",
        "lora.unmatched: note"}) {
    EXPECT_NE(tutorial.find(part), std::string::npos) << tutorial;
  }
  // The pattern that the message proposes works.
  EXPECT_EQ(Choose("minigpt", TutorialConfig(), ".*mha.*|.*linear1|.*linear2", true).size(), 24u);

  const engine::ModelConfig llama = bench::TinyLlamaConfig();
  const std::string typo = ErrorOf([&] { Choose("llama", llama, "(q|k|w|o)_proj"); });
  EXPECT_NE(typo.find("\"w\" matches no linear layer; the nearest names are"), std::string::npos)
      << typo;
  EXPECT_EQ(Choose("llama", llama, "(q|k|w|o)_proj", false, Unmatched::kNote).size(), 6u);
  // Names of one model in two notations. embed_tokens is not a linear layer, and another note
  // covers it.
  EXPECT_EQ(Choose("llama", llama, "up_proj|wi_0").size(), 4u);
  EXPECT_EQ(Choose("llama", llama, "up_proj|embed_tokens").size(), 2u);
  // No match at all is an error even with unmatched: note.
  ErrorOf([&] { Choose("llama", llama, "mha|linear1", false, Unmatched::kNote); });
}

TEST(LoraTargets, OfAWholePathThatNothingHasSayWhatAPartWouldMatch) {
  const std::string text =
      ErrorOf([&] { Choose("minigpt", TutorialConfig(), "linear1", true, Unmatched::kNote); });
  EXPECT_NE(text.find("but 4 layers as a part of it"), std::string::npos) << text;
}

TEST(PatternBranches, AreTheAlternativesOnEveryLevel) {
  const auto alone = [](std::string_view pattern) {
    std::vector<std::string> texts;
    for (const PatternBranch& branch : BranchesOf(pattern)) texts.push_back(branch.alone);
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(alone("abc"), Texts{});
  EXPECT_EQ(alone("a|b|c"), (Texts{"a", "b", "c"}));
  EXPECT_EQ(alone("x(a|b)y"), (Texts{"x(a)y", "x(b)y"}));
  EXPECT_EQ(alone("x(?:a|b)?|c"), (Texts{"x(?:a|b)?", "x(?:a)?", "x(?:b)?", "c"}));
  EXPECT_EQ(alone("a(b|c(d|e))"), (Texts{"a(b)", "a(c(d|e))", "a(c(d))", "a(c(e))"}));
  EXPECT_EQ(alone("[|(]|\\||b"), (Texts{"[|(]", "\\|", "b"}));
  EXPECT_EQ(alone("[\\]|]|b"), (Texts{"[\\]|]", "b"}));
  EXPECT_EQ(alone("a||b"), (Texts{"a", "", "b"}));
  // These expressions cannot be split into alternatives.
  EXPECT_EQ(alone("(a|b)*(c|(d|e)){2}(?!f|g)"), Texts{});
  EXPECT_EQ(alone("(a|b)\\1"), Texts{});
  EXPECT_EQ(alone("(a|b"), Texts{});
  EXPECT_EQ(alone("a|b)"), Texts{});
}

TEST(LoraTargets, AreDescribedByKindWithTheirParameters) {
  const engine::ModelConfig llama = bench::TinyLlamaConfig();
  const auto specs = engine::FindFamilyByName("llama").list_weights(llama);
  const auto lines = DescribeTargets(Choose("llama", llama, "up_proj|layers.1.mlp.down"), specs);
  ASSERT_EQ(lines.size(), 2u);
  const int64_t one = 16 * (llama.hidden_dim + llama.ffn_dim);
  EXPECT_EQ(lines[0],
            "model.layers.*.mlp.up_proj: 2 layers, " + std::to_string(2 * one) + " parameters");
  EXPECT_EQ(lines[1],
            "model.layers.*.mlp.down_proj: 1 layer, " + std::to_string(one) + " parameters");
}

class LoraLoadPath : public testing::Test {
 protected:
  LoraLoadPath() {
    bench::RandomModelSpec model;
    model.config = bench::TinyLlamaConfig();
    model.with_tokenizer = true;
    bench::WriteRandomModel(model, dir_.path() / "base");
    tests::WriteRandomAdapter(dir_.path() / "base", 3, 7, dir_.path() / "adapter");
    std::ofstream text(dir_.path() / "train.txt");
    for (int i = 0; i < 20; ++i) text << "the dog ran home\n<|endoftext|>\n";
  }

  TrainOutcome Run(const std::vector<std::string>& overrides) {
    std::vector<std::string> words = {
        "model.load_parameters_path=" + (dir_.path() / "base").string(),
        "data.train=" + (dir_.path() / "train.txt").string(),
        "lora.load_path=" + (dir_.path() / "adapter").string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    JobContext context;
    context.dir = dir_.path() / "job";
    return RunTraining(ParseTrainSpec("data: {max_target_length: 32}\n"
                                      "train: {steps: 1, per_device_batch_size: 1}\n"
                                      "resources: {threads: 1}\n",
                                      "spec", words),
                       context);
  }
  void SetField(const char* field, const nlohmann::ordered_json& value) {
    const fs::path path = dir_.path() / "adapter/adapter_config.json";
    auto config = nlohmann::ordered_json::parse(engine::ReadWholeFile(path, 1 << 20));
    config[field] = value;
    engine::WriteFileAtomically(path, config.dump());
  }

  tests::TemporaryDir dir_;
};

TEST_F(LoraLoadPath, TrainsOnWithTheAdaptersOwnRankScaleLayersAndValues) {
  const TrainOutcome outcome = Run({"learning_rate=0", "precision.compute=f32"});

  const auto before = engine::LoraAdapter::Open(dir_.path() / "adapter");
  const auto after = engine::LoraAdapter::Open(outcome.adapter_dir);
  ASSERT_EQ(after.modules().size(), before.modules().size());
  EXPECT_EQ(after.rank(), 3);
  EXPECT_EQ(after.alpha(), 6);
  for (size_t i = 0; i < after.modules().size(); ++i) {
    const engine::LoraModule& a = before.modules()[i];
    const engine::LoraModule& b = after.modules()[i];
    EXPECT_EQ(a.path, b.path);
    EXPECT_EQ(a.scale, b.scale);
    std::vector<float> va(static_cast<size_t>(a.a.elements())), vb(va.size());
    engine::ConvertToF32(a.a, va);
    engine::ConvertToF32(b.a, vb);
    EXPECT_EQ(va, vb) << a.path;
  }
}

TEST_F(LoraLoadPath, RefusesWhatItCannotGoOnFromByName) {
  for (const char* key : {"lora.rank=4", "lora.alpha=2", "lora.module_path=mlp"}) {
    const std::string message = ErrorOf([&] { Run({key}); });
    const std::string name = std::string(key).substr(0, std::string(key).find('='));
    EXPECT_NE(message.find(name + ": must not be set with lora.load_path"), std::string::npos)
        << message;
  }
  SetField("use_dora", true);
  EXPECT_NE(ErrorOf([&] { Run({}); }).find("use_dora"), std::string::npos);
  SetField("use_dora", false);
  SetField("modules_to_save", {"lm_head"});
  EXPECT_NE(ErrorOf([&] { Run({}); }).find("modules_to_save"), std::string::npos);
}

TEST_F(LoraLoadPath, KeepsTheOtherAlphaOfALayer) {
  SetField("alpha_pattern", {{"model.layers.0.mlp.up_proj", 9}});
  const TrainOutcome outcome = Run({"learning_rate=0", "precision.compute=f32"});

  const auto before = engine::LoraAdapter::Open(dir_.path() / "adapter");
  const auto after = engine::LoraAdapter::Open(outcome.adapter_dir);
  ASSERT_EQ(after.modules().size(), before.modules().size());
  std::set<float> scales;
  for (size_t i = 0; i < after.modules().size(); ++i) {
    EXPECT_EQ(after.modules()[i].scale, before.modules()[i].scale) << before.modules()[i].path;
    scales.insert(after.modules()[i].scale);
  }
  EXPECT_EQ(scales, (std::set<float>{2, 3}));
}

}  // namespace
}  // namespace tandem::training
