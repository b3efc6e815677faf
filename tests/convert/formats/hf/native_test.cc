// Native checkpoints: stacking and unstacking keep every bit, full states survive, hostile files
// are refused.

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/formats/checkpoint_manifest.h"
#include "engine/io/sha256.h"
#include "engine/model/families/family.h"
#include "engine/model/families/weights.h"
#include "engine/tensor/bfloat16.h"
#include "tests/convert/convert_fixture.h"
#include "tests/convert/families.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using Json = nlohmann::ordered_json;

class NativeTest : public ConversionTest {
 protected:
  fs::path Make(const ConvertSpec& spec) {
    Run(spec);
    return spec.target;
  }
  static Json ManifestOf(const fs::path& dir) { return Json::parse(Text(dir / "manifest.json")); }
  static void WriteText(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }
  // Writes a manifest of all files in the directory.
  static void WriteManifest(const fs::path& dir, engine::CheckpointManifest manifest) {
    for (const auto& [name, text] : Contents(dir)) {
      manifest.files.push_back({name, static_cast<int64_t>(text.size()),
                                engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))))});
    }
    WriteText(dir / "manifest.json", manifest.ToJson());
  }

  // A bf16 run's checkpoint as the trainer writes it, with random masters.
  struct Run16 {
    fs::path dir;
    std::map<std::string, std::vector<float>> masters;  // by name, in the layout of the weight file
  };
  Run16 MakeFullState(const tests::Golden& golden) {
    Run16 run{dir_.path() / "run", {}};
    fs::create_directory(run.dir);
    const std::string config_text = Text(golden.dir / "config.json");
    WriteText(run.dir / "config.json", config_text);
    WriteText(run.dir / "train_state.json", "{\"version\": 1, \"step\": 7}\n");
    const Json config = Json::parse(config_text);
    const engine::FamilySpec& family = engine::FindFamily(config, "config.json");
    std::vector<engine::NamedTensor> weights, optim;
    std::vector<std::vector<std::byte>> bytes;
    std::mt19937 random(7);
    const auto keep = [&](const void* data, size_t size) {
      const auto* begin = static_cast<const std::byte*>(data);
      bytes.emplace_back(begin, begin + size);
      return bytes.back().data();
    };
    const auto specs = family.list_weights(family.parse_config(config, "config.json"));
    bytes.reserve(8 * specs.size());
    for (const engine::WeightSpec& spec : specs) {
      const auto count = static_cast<size_t>(spec.n * spec.k);
      std::vector<uint16_t> high(count);
      std::vector<int16_t> low(count);
      std::vector<float> m(count), master(count);
      for (size_t at = 0; at < count; ++at) {  // `at` in [n, k]
        uint32_t bits = 0x3c000000u + random() % 0x2000000u + (random() % 2 << 31);
        if (at % 5 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // halfway between two bf16 numbers
        const uint32_t upper = (bits + 0x8000u) >> 16;
        const size_t in_file =
            spec.layout == engine::SourceLayout::kOutIn
                ? at
                : at % static_cast<size_t>(spec.k) * static_cast<size_t>(spec.n) +
                      at / static_cast<size_t>(spec.k);
        high[in_file] = static_cast<uint16_t>(upper);
        low[at] = static_cast<int16_t>(bits - (upper << 16));
        std::memcpy(&master[in_file], &bits, 4);
        m[at] = static_cast<float>(random());
      }
      const std::vector<int64_t> shape = {spec.n, spec.k};
      weights.push_back(
          {spec.name, {keep(high.data(), 2 * count), DType::kBF16, spec.source_shape}});
      optim.push_back({"low/" + spec.name, {keep(low.data(), 2 * count), DType::kI16, shape}});
      optim.push_back({"m/" + spec.name, {keep(m.data(), 4 * count), DType::kF32, shape}});
      optim.push_back({"v/" + spec.name, {keep(m.data(), count), DType::kU8, shape}});
      optim.push_back({"v_scales/" + spec.name, {keep(m.data(), 8), DType::kF32, {2}}});
      run.masters[spec.name] = std::move(master);
    }
    engine::WriteSafetensors(run.dir / "model.safetensors", weights, {{"format", "pt"}});
    engine::WriteSafetensors(run.dir / "optim.safetensors", optim, {{"format", "pt"}});
    engine::CheckpointManifest manifest;
    manifest.kind = "full";
    manifest.arch = std::string(family.name);
    manifest.step = 7;
    manifest.isa = "avx2";
    WriteManifest(run.dir, manifest);
    return run;
  }
};

TEST_F(NativeTest, EveryFamilyIsStackedAndComesBackBitForBit) {
  int stacked_models = 0;
  for (const std::string& name : ModelsOfEveryFamily()) {
    SCOPED_TRACE(name);
    const tests::Golden golden = tests::LoadGolden(name);
    const fs::path copy = Make(Spec(golden.dir, "hf", name + "-copy"));

    const fs::path native = Make(Spec(golden.dir, "native", name + "-native"));
    const fs::path back = Make(Spec(native, "hf", name + "-back"));

    ExpectSameContents(Contents(back), Contents(copy));
    // This layout keeps experts one by one.
    const bool one_by_one = HasStacks(golden.dir);
    if (!one_by_one) ExpectSameTensors(golden.dir, native);
    EXPECT_EQ(engine::ModelDir::Open(native).format(), "native");
    const Json manifest = ManifestOf(native);
    EXPECT_EQ(manifest["kind"], "params");
    EXPECT_EQ(manifest["layout"], "stacked");
    EXPECT_EQ(manifest["files"].size() + 2, Contents(native).size() + 1);
    const auto shard = engine::SafetensorsFile::Open(native / "model-00001-of-00001.safetensors");
    stacked_models += std::any_of(shard.names().begin(), shard.names().end(),
                                  [](const auto& n) { return n.find("{L}") != n.npos; });
    // Aliases, both layouts, and our directory that is also a Hugging Face directory.
    const fs::path params = Make(Spec(native, "params", name + "-params"));
    ConvertSpec unroll = Spec(native, "scanned", name + "-unrolled");
    unroll.layout = "unscanned";
    ExpectSameContents(Contents(Make(unroll)), Contents(params));
    if (!one_by_one) {
      EXPECT_EQ(Text(params / "model.safetensors"), Text(copy / "model.safetensors"));
    }
    EXPECT_EQ(engine::ModelDir::Open(params).format(), "hf");
  }
  EXPECT_EQ(stacked_models, static_cast<int>(ModelsOfEveryFamily().size()));
}

TEST_F(NativeTest, AStackedModelSaysWhatItsFixtureSays) {
  for (const std::string name : {"gemma2-tiny", "gpt2-tiny", "qwen3-tiny"}) {
    SCOPED_TRACE(name);
    const tests::Golden golden = tests::LoadGolden(name);
    const fs::path native = Make(Spec(golden.dir, "native", name));

    tests::ModelHarness harness(native, {.dtype = DType::kF32});
    std::vector<std::vector<TokenId>> prompts, expected;
    for (const tests::GoldenSequence& sequence : golden.sequences) {
      prompts.push_back(sequence.input_ids);
      expected.push_back(sequence.greedy_ids);
    }
    EXPECT_EQ(harness.Greedy(prompts, expected[0].size(), 0), expected);
  }
}

TEST_F(NativeTest, WhatIsTooLongForAFileIsShards) {
  const tests::Golden golden = tests::LoadGolden("llama2-tiny-two-shards");
  ConvertSpec native = Spec(golden.dir, "native", "native");
  native.max_shard_bytes = 20'000;
  ConvertSpec params = Spec(Make(native), "native-params", "params");
  params.max_shard_bytes = 20'000;
  Run(params);

  ExpectSameTensors(golden.dir, native.target);
  ExpectSameTensors(golden.dir, params.target);
  const Json index = Json::parse(Text(params.target / "model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"].size(), engine::ModelDir::Open(golden.dir).tensor_names().size());
  EXPECT_FALSE(fs::exists(params.target / "model.safetensors"));
  const auto files = engine::ParseCheckpointManifest(Text(native.target / "manifest.json"), "m");
  EXPECT_GT(files.TensorFiles("model").size(), 2U);
  engine::CheckManifestFiles(files, native.target, /*hashes=*/true);
}

TEST_F(NativeTest, TensorsThatDifferBetweenLayersStaySingle) {
  const fs::path model = dir_.path() / "model";
  fs::create_directory(model);
  WriteText(model / "config.json", "{\"model_type\": \"llama\"}");
  const std::vector<float> data(64, 1.0f);
  const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
  const std::vector<engine::NamedTensor> tensors = {{"layers.0.same", {bytes, DType::kF32, {2, 4}}},
                                                    {"layers.1.same", {bytes, DType::kF32, {2, 4}}},
                                                    {"layers.0.wide", {bytes, DType::kF32, {2, 4}}},
                                                    {"layers.1.wide", {bytes, DType::kF32, {2, 8}}},
                                                    {"layers.0.type", {bytes, DType::kF32, {4}}},
                                                    {"layers.1.type", {bytes, DType::kF16, {4}}},
                                                    {"layers.1.late", {bytes, DType::kF32, {4}}},
                                                    {"layers.007.odd", {bytes, DType::kF32, {4}}},
                                                    {"layers.0.scalar", {bytes, DType::kF32, {}}},
                                                    {"layers.1.scalar", {bytes, DType::kF32, {}}},
                                                    {"layers.0.none", {bytes, DType::kF32, {0, 3}}},
                                                    {"layers.1.none", {bytes, DType::kF32, {0, 3}}},
                                                    {"head", {bytes, DType::kF32, {3}}}};
  engine::WriteSafetensors(model / "model.safetensors", tensors, {});

  const fs::path native = Make(Spec(model, "native"));

  ExpectSameTensors(model, native);
  auto names = engine::SafetensorsFile::Open(native / "model-00001-of-00001.safetensors").names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names,
            (std::vector<std::string>{"head", "layers.0.type", "layers.0.wide", "layers.007.odd",
                                      "layers.1.late", "layers.1.type", "layers.1.wide",
                                      "layers.{L}.none", "layers.{L}.same", "layers.{L}.scalar"}));
}

// gpt2's files and the optimizer store matrices in opposite layouts.
TEST_F(NativeTest, AFullStateKeepsItsOptimizerAndGivesExactMasters) {
  for (const std::string name : {"gemma2-tiny", "gpt2-tiny"}) {
    SCOPED_TRACE(name);
    fs::remove_all(dir_.path() / "run");
    const Run16 run = MakeFullState(tests::LoadGolden(name));

    const fs::path native = Make(Spec(run.dir, "native", name + "-native"));
    ConvertSpec unroll = Spec(native, "native", name + "-unrolled");
    unroll.layout = "unscanned";
    Run(unroll);

    EXPECT_EQ(ManifestOf(native)["kind"], "full");
    EXPECT_EQ(ManifestOf(native)["step"], 7);
    EXPECT_EQ(Text(native / "train_state.json"), Text(run.dir / "train_state.json"));
    for (const auto& [file, text] : Contents(run.dir)) {
      if (file != "manifest.json") {
        EXPECT_EQ(Text(unroll.target / file), text) << file;
      }
    }
    EXPECT_EQ(ManifestOf(unroll.target)["producer"], ManifestOf(run.dir)["producer"]);

    // Both from the run and from the stacked checkpoint.
    for (const fs::path& from : {run.dir, native}) {
      for (const std::string dtype : {"f32", "bf16"}) {
        SCOPED_TRACE(from.filename().string() + " " + dtype);
        ConvertSpec spec = Spec(from, "native-params", "weights");
        spec.dtype = dtype;
        spec.overwrite = true;
        const auto weights = engine::ModelDir::Open(Make(spec));
        EXPECT_FALSE(fs::exists(spec.target / "train_state.json"));
        for (const auto& [tensor, master] : run.masters) {
          const std::vector<float> is = engine::DecodeTensor(*weights.FindStored(tensor));
          ASSERT_EQ(is.size(), master.size());
          for (size_t i = 0; i < is.size(); ++i) {
            const float wanted =
                dtype == "f32" ? master[i] : engine::Bf16ToFloat(engine::FloatToBf16(master[i]));
            ASSERT_EQ(is[i], wanted) << tensor << " " << i;
          }
        }
      }
    }
    // An adapter is computed from the masters, too.
    std::map<std::string, std::string> adapters[2];
    for (const std::string from : {"run", "weights-f32"}) {
      if (from != "run") {
        ConvertSpec spec = Spec(native, "native-params", from);
        spec.dtype = "f32";
        spec.overwrite = true;
        Run(spec);
      }
      ConvertSpec spec = Spec(dir_.path() / from, "peft", name + "-adapter-of-" + from);
      spec.base = tests::LoadGolden(name).dir;
      spec.peft.rank = 2;
      adapters[from == "run" ? 0 : 1] = Contents(Make(spec));
    }
    ExpectSameContents(adapters[0], adapters[1]);
    ConvertSpec halves = Spec(native, "hf", name + "-halves");
    EXPECT_EQ(Text(Make(halves) / "model.safetensors"), Text(run.dir / "model.safetensors"));
    ConvertSpec cast = Spec(run.dir, "native", "cast");
    cast.dtype = "f32";
    ExpectFault(cast, ErrorCode::kInvalidArgument, "native-params");
  }
}

TEST_F(NativeTest, WhatManifestsClaimIsHeldAgainstTheFiles) {
  const tests::Golden golden = tests::LoadGolden("gemma2-tiny");
  const fs::path native = Make(Spec(golden.dir, "native", "native"));
  const std::string shard = "model-00001-of-00001.safetensors";
  const std::string manifest = Text(native / "manifest.json"), weights = Text(native / shard);
  const auto convert = [&] { return Spec(native, "hf"); };
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json changed = Json::parse(manifest);
    changed[Json::json_pointer(pointer)] = value;
    WriteText(native / "manifest.json", changed.dump());
  };

  with("/version", 2);
  ExpectFault(convert(), ErrorCode::kUnsupported, "version 2");
  EXPECT_THROW(engine::ModelDir::Open(native), Error);
  with("/layout", "sideways");
  ExpectFault(convert(), ErrorCode::kUnsupported, "sideways");
  with("/files/0/name", "../model.safetensors");
  ExpectFault(convert(), ErrorCode::kDataLoss, "plain file name");
  with("/files", Json::array());
  ExpectFault(convert(), ErrorCode::kDataLoss, "files");
  with("/files/0/sha256", "beef");
  ExpectFault(convert(), ErrorCode::kDataLoss, "64 hex digits");
  with("/kind", "params");

  std::string flipped = weights;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 4);
  WriteText(native / shard, flipped);
  ExpectFault(convert(), ErrorCode::kDataLoss, shard);
  WriteText(native / shard, weights.substr(0, weights.size() - 1));
  ExpectFault(convert(), ErrorCode::kDataLoss, shard);
  fs::remove(native / shard);
  ExpectFault(convert(), ErrorCode::kDataLoss, shard);
  WriteText(native / shard, weights);
  Run(convert());
}

TEST_F(NativeTest, StackedTensorsThatLieAreRefusedByName) {
  const std::vector<float> data(64, 1.0f);
  const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
  struct Case {
    std::vector<engine::NamedTensor> tensors;
    const char* word;
  };
  const std::vector<Case> cases = {
      {{{"layers.{L}.a", {bytes, DType::kF32, {}}}}, "no layer axis"},
      {{{"layers.{L}.a", {bytes, DType::kF32, {0, 4}}}}, "0 layers"},
      {{{"layers.{L}.a", {bytes, DType::kF32, {1'000'000'000, 0}}}}, "1000000000 layers"},
      {{{"layers.{L}.{L}", {bytes, DType::kF32, {2, 4}}}}, "more than one"},
      {{{"layers.{L}.a", {bytes, DType::kF32, {2, 4}}}, {"layers.1.a", {bytes, DType::kF32, {4}}}},
       "twice"}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.word);
    tests::TemporaryDir dir;
    WriteText(dir / "config.json", "{}");
    engine::WriteSafetensors(dir / "model-00001-of-00001.safetensors", each.tensors, {});
    engine::CheckpointManifest manifest;
    manifest.kind = "params";
    manifest.layout = "stacked";
    WriteManifest(dir.path(), manifest);

    try {
      engine::ModelDir::Open(dir.path());
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      EXPECT_NE(std::string(error.what()).find(each.word), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("layers."), std::string::npos) << error.what();
    }
  }
  // A source whose names contain the mark is not stacked.
  tests::TemporaryDir dir;
  WriteText(dir / "config.json", "{}");
  engine::WriteSafetensors(dir / "model.safetensors", cases[1].tensors, {});
  ExpectFault(Spec(dir.path(), "native"), ErrorCode::kUnsupported, "{L}");
}

}  // namespace
}  // namespace tandem::convert
