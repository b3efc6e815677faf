#include "engine/model/model.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/mapping_faults.h"
#include "engine/kernels/arithmetic.h"
#include "engine/kernels/kernels.h"
#include "engine/model/find_weight.h"
#include "engine/model/packed_cache.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/own_head.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

class ModelLoad : public ::testing::Test {
 protected:
  fs::path path(const std::string& name) const { return dir_.path() / name; }

  std::shared_ptr<const Model> Load(const fs::path& model, const LoadOptions& options = {}) {
    return Model::Load(ModelDir::Open(model), options, ops_);
  }
  std::string Fault(const fs::path& model, ErrorCode expected) {
    try {
      Load(model);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), expected) << error.what();
      return error.what();
    }
  }
  fs::path WriteTiny(const std::string& name, const bench::RandomModelSpec& spec) {
    bench::WriteRandomModel(spec, path(name));
    return path(name);
  }
  // Rewrites config.json of a model.
  static void Edit(const fs::path& model,
                   const std::function<void(nlohmann::ordered_json&)>& edit) {
    auto json = nlohmann::ordered_json::parse(ReadWholeFile(model / "config.json", 1 << 20));
    edit(json);
    WriteFileAtomically(model / "config.json", json.dump());
  }
  std::vector<fs::path> PackedFiles() const {
    std::vector<fs::path> files;
    std::error_code none_yet;
    for (const auto& entry : fs::directory_iterator(path("cache") / "packed", none_yet)) {
      files.push_back(entry.path() / "weights");
    }
    return files;
  }

  tests::TemporaryDir dir_;
  ThreadPool pool_{1};
  OpsContext ops_{Kernels(), pool_};
};

TEST_F(ModelLoad, DTypeFollowsTheCheckpointUnlessItIsGiven) {
  const fs::path f32 =
      WriteTiny("f32", {.config = bench::TinyLlamaConfig(), .stored = DType::kF32});
  const fs::path bf16 =
      WriteTiny("bf16", {.config = bench::TinyLlamaConfig(), .stored = DType::kBF16});

  EXPECT_EQ(Load(f32)->dtype(), DType::kF32);
  EXPECT_EQ(Load(bf16)->dtype(), DType::kBF16);
  EXPECT_EQ(Load(bf16, {.dtype = DType::kF32})->dtype(), DType::kF32);
  EXPECT_THROW(Load(bf16, {.dtype = DType::kI8}), Error);
}

TEST_F(ModelLoad, BlocksHoldMatricesInTheirFormatAndTheHeadAndTablesInAFinerOne) {
  ModelConfig tied = bench::TinyLlamaConfig();
  tied.tied_embeddings = true;
  ModelConfig untied = tied;
  untied.tied_embeddings = false;
  for (const ModelConfig& config : {tied, untied}) {
    const std::string name = config.tied_embeddings ? "tied" : "untied";
    const fs::path dir = WriteTiny(name, {.config = config});
    for (const auto& [block, of_head] : {std::pair{BlockFormat::kInt4, BlockFormat::kInt6},
                                         {BlockFormat::kInt8, BlockFormat::kInt8}}) {
      const auto model = Load(dir, {.block = block});

      EXPECT_EQ(model->weights_type(), BlockFormatName(block));
      EXPECT_EQ(model->dtype(), DType::kBF16);
      for (const Weight& weight : model->weights()) {
        const WeightSpec& spec = *weight.spec;
        if (spec.kind == WeightKind::kVector) continue;
        const bool head = spec.kind == WeightKind::kEmbedding || spec.name == "lm_head.weight";
        EXPECT_EQ(weight.panels.block, head ? of_head : block) << spec.name;
      }
    }
  }
}

TEST_F(ModelLoad, AStoredHeadThatDiffersFromTheTableUntiesTheConfig) {
  ModelConfig config = bench::TinyLlamaConfig();
  config.tied_embeddings = true;
  for (const bool is_copy : {true, false}) {
    const fs::path dir = WriteTiny(is_copy ? "copy" : "own", {.config = config});
    tests::StoreHead(dir, is_copy);
    const auto model = Load(dir);
    EXPECT_EQ(model->config().tied_embeddings, is_copy);
    EXPECT_EQ(model->weights().back().spec->name == "lm_head.weight", !is_copy);
    EXPECT_EQ(OutlineModel(ModelDir::Open(dir), {}).has_own_head, !is_copy);
  }
}

TEST_F(ModelLoad, BlocksComputeInBf16Only) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  EXPECT_THROW(Load(model, {.dtype = DType::kF32, .block = BlockFormat::kInt8}), Error);
}

TEST_F(ModelLoad, AWeightThatBlocksCannotHoldIsNamed) {
  const ModelConfig config = bench::TinyLlamaConfig();
  const fs::path model = WriteTiny("m", {.config = config});
  std::vector<NamedTensor> tensors;
  const std::vector<WeightSpec> specs = FindFamilyByName("llama").list_weights(config);
  std::vector<std::vector<float>> values;
  for (const WeightSpec& spec : specs) {
    values.emplace_back(static_cast<size_t>(spec.n * spec.k), 0.5f);
    tensors.push_back({spec.name,
                       {reinterpret_cast<const std::byte*>(values.back().data()), DType::kF32,
                        spec.source_shape}});
  }
  values[5][3] = INFINITY;
  fs::remove(model / "model.safetensors");
  WriteSafetensors(model / "model.safetensors", tensors, {});

  try {
    Load(model, {.block = BlockFormat::kInt8});
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'" + specs[5].name + "'"), std::string::npos)
        << error.what();
  }
}

TEST_F(ModelLoad, PackedWeightsHoldTheNumbersOfTheCheckpoint) {
  for (const std::string& name : tests::GoldenNames()) {
    const ModelDir dir = ModelDir::Open(tests::LoadGolden(name).dir);
    const auto model = Model::Load(dir, {.dtype = DType::kF32}, ops_);
    for (const Weight& weight : model->weights()) {
      const WeightSpec& spec = *weight.spec;
      const std::optional<StoredTensor> source = FindWeight(dir, spec);
      ASSERT_TRUE(source) << name << " " << spec.name;
      std::vector<float> expected = DecodeTensor(*source);
      for (float& value : expected) value += spec.offset;
      std::vector<float> actual(expected.size());
      if (spec.kind == WeightKind::kVector) {
        std::copy_n(weight.vector, spec.n, actual.begin());
      } else {
        UnpackPanels(weight.panels, actual.data());
      }
      if (spec.layout == SourceLayout::kInOut) {
        std::vector<float> turned(expected.size());
        for (int64_t n = 0; n < spec.n; ++n) {
          for (int64_t k = 0; k < spec.k; ++k) {
            turned[static_cast<size_t>(n * spec.k + k)] =
                expected[static_cast<size_t>(k * spec.n + n)];
          }
        }
        expected = turned;
      }
      EXPECT_EQ(actual, expected) << name << " " << spec.name;
    }
  }
}

TEST_F(ModelLoad, AMissingTensorIsNamed) {
  // config.json asks for three layers; the checkpoint has two.
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  Edit(model, [](auto& json) { json["num_hidden_layers"] = 3; });

  const std::string fault = Fault(model, ErrorCode::kDataLoss);

  EXPECT_NE(fault.find("'model.layers.2.input_layernorm.weight' is missing"), std::string::npos)
      << fault;
}

TEST_F(ModelLoad, AWrongShapeIsNamedWithBothShapes) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  Edit(model, [](auto& json) { json["intermediate_size"] = 81; });

  const std::string fault = Fault(model, ErrorCode::kDataLoss);

  EXPECT_NE(fault.find("mlp.gate_proj.weight"), std::string::npos) << fault;
  EXPECT_NE(fault.find("[80, 48]"), std::string::npos) << fault;
  EXPECT_NE(fault.find("[81, 48]"), std::string::npos) << fault;
}

TEST_F(ModelLoad, ATensorOfIntegersIsRefused) {
  const ModelConfig config = bench::TinyMiniGptConfig();
  const fs::path model = WriteTiny("m", {.config = config});
  fs::remove(model / "model.safetensors");
  const std::vector<std::byte> zeros(1 << 20);
  std::vector<NamedTensor> tensors;
  for (const WeightSpec& spec : FindFamilyByName("minigpt").list_weights(config)) {
    tensors.push_back({spec.name, {zeros.data(), DType::kF32, spec.source_shape}});
  }
  tensors[3].view.dtype = DType::kI32;
  WriteSafetensors(model / "model.safetensors", tensors, {});

  const std::string fault = Fault(model, ErrorCode::kUnsupported);

  EXPECT_NE(fault.find(tensors[3].name), std::string::npos) << fault;
  EXPECT_NE(fault.find("i32"), std::string::npos) << fault;
}

TEST_F(ModelLoad, FingerprintNamesWeightsDTypeConfigAndArithmetic) {
  const fs::path a = WriteTiny("a", {.config = bench::TinyLlamaConfig(), .seed = 1});
  const fs::path same = WriteTiny("same", {.config = bench::TinyLlamaConfig(), .seed = 1});
  const fs::path weights = WriteTiny("weights", {.config = bench::TinyLlamaConfig(), .seed = 2});
  const fs::path config = WriteTiny("config", {.config = bench::TinyLlamaConfig(), .seed = 1});
  Edit(config, [](auto& json) { json["rope_theta"] = 20000.0; });
  const std::string fingerprint = Load(a)->fingerprint();

  EXPECT_EQ(Load(same)->fingerprint(), fingerprint);
  EXPECT_NE(Load(weights)->fingerprint(), fingerprint);
  EXPECT_NE(Load(config)->fingerprint(), fingerprint);
  EXPECT_NE(Load(a, {.dtype = DType::kF32})->fingerprint(), fingerprint);
  EXPECT_NE(Load(a, {.block = BlockFormat::kInt8})->fingerprint(), fingerprint);
  for (const KernelTable* kernels : RunnableKernelTables()) {
    OpsContext other(*kernels, pool_);
    EXPECT_EQ(Model::Load(ModelDir::Open(a), {}, other)->fingerprint() == fingerprint,
              ArithmeticOf(*kernels) == ArithmeticOf(Kernels()));
  }
}

TEST_F(ModelLoad, FingerprintNamesTheFactorsOfLongRope) {
  ModelConfig config = bench::TinyModelConfig("phi3");
  config.rope_scaling.original_max_positions = 128;
  const fs::path model = WriteTiny("m", {.config = config});
  const auto of = [&](int64_t context) {
    return Load(model, {.max_context_len = context})->fingerprint();
  };
  EXPECT_EQ(of(128), of(64));
  EXPECT_EQ(of(256), of(129));
  EXPECT_NE(of(256), of(128));
  EXPECT_EQ(of(128), Load(model)->fingerprint());
}

TEST_F(ModelLoad, ContextCanBeLoweredButNotRaised) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});

  EXPECT_EQ(Load(model, {.max_context_len = 100})->config().max_context_len, 100);
  EXPECT_EQ(Load(model, {.max_context_len = 100})->ropes().at(0).max_positions(), 100);
  EXPECT_EQ(Load(model, {.max_context_len = 1000})->config().max_context_len, 256);
}

TEST_F(ModelLoad, ProgressRisesToOne) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  double last = 0;  // starts at 0, while the checkpoint is hashed

  Load(model, {.progress = [&](double fraction) {
         EXPECT_GE(fraction, last);
         last = fraction;
       }});

  EXPECT_NEAR(last, 1, 0.05);
}

TEST_F(ModelLoad, TheSecondLoadMapsTheFileThatTheFirstOneMade) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  const LoadOptions options{.cache_dir = path("cache")};
  const auto first = Load(model, options);
  ASSERT_EQ(PackedFiles().size(), 1u);
  const auto made = fs::last_write_time(PackedFiles()[0]);

  const auto second = Load(model, options);

  EXPECT_TRUE(first->is_mapped());
  EXPECT_TRUE(second->is_mapped());
  EXPECT_EQ(fs::last_write_time(PackedFiles()[0]), made) << "packed again";
  EXPECT_EQ(first->weight_bytes(), static_cast<int64_t>(fs::file_size(PackedFiles()[0])));
  EXPECT_FALSE(Load(model)->is_mapped());
}

TEST_F(ModelLoad, MappedAndOwnedWeightsAreTheSameBytes) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyMiniGptConfig()});
  const auto owned = Load(model), mapped = Load(model, {.cache_dir = path("cache")});

  for (size_t i = 0; i < owned->weights().size(); ++i) {
    const Weight &a = owned->weights()[i], &b = mapped->weights()[i];
    if (a.vector != nullptr) {
      EXPECT_EQ(std::memcmp(a.vector, b.vector, static_cast<size_t>(a.spec->n) * 4), 0);
    } else {
      const auto bytes = static_cast<size_t>(PanelBytes(a.panels.dtype, a.panels.n, a.panels.k));
      EXPECT_EQ(std::memcmp(a.panels.panels, b.panels.panels, bytes), 0);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(b.panels.panels) % 64, 0u);
    }
  }
}

TEST_F(ModelLoad, DTypesAndCheckpointsHaveFilesOfTheirOwn) {
  const fs::path a = WriteTiny("a", {.config = bench::TinyLlamaConfig(), .seed = 1});
  const fs::path b = WriteTiny("b", {.config = bench::TinyLlamaConfig(), .seed = 2});

  Load(a, {.dtype = DType::kBF16, .cache_dir = path("cache")});
  Load(a, {.dtype = DType::kF32, .cache_dir = path("cache")});
  Load(b, {.dtype = DType::kBF16, .cache_dir = path("cache")});
  Load(a, {.block = BlockFormat::kInt8, .cache_dir = path("cache")});
  Load(a, {.block = BlockFormat::kInt4, .cache_dir = path("cache")});

  EXPECT_EQ(PackedFiles().size(), 5u);
  EXPECT_TRUE(Load(a, {.block = BlockFormat::kInt4, .cache_dir = path("cache")})->is_mapped());
  EXPECT_EQ(PackedFiles().size(), 5u);
}

// For instance a release that quantises the head of int4 models to another format.
TEST_F(ModelLoad, AFileWhoseHeadIsInAnotherFormatIsNotTaken) {
  const fs::path dir = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  const LoadOptions options{.block = BlockFormat::kInt4, .cache_dir = path("cache")};
  const ModelOutline outline = OutlineModel(ModelDir::Open(dir), options);
  PackedTypes older = outline.types;
  for (size_t i = 0; i < older.blocks.size(); ++i) {
    if (older.blocks[i] == BlockFormat::kInt6) older.blocks[i] = BlockFormat::kInt8;
  }
  const PackedLayout now = LayOutWeights(outline.specs, outline.types, "hash");
  const PackedLayout then = LayOutWeights(outline.specs, older, "hash");
  EXPECT_NE(now.key, then.key);
  EXPECT_LT(now.file_bytes, then.file_bytes);

  // Even under our name it is rebuilt, since its header differs from the expected one.
  Load(dir, options);
  const fs::path packed = PackedFiles().at(0);
  const std::string good = ReadWholeFile(packed, 1 << 24);
  std::string foreign = good;
  const size_t at = foreign.find(" int6/");
  ASSERT_NE(at, std::string::npos);
  foreign.replace(at, 5, " int8");
  std::ofstream(packed, std::ios::binary | std::ios::trunc) << foreign;
  Load(dir, options);
  EXPECT_EQ(ReadWholeFile(packed, 1 << 24), good);
}

TEST_F(ModelLoad, ADamagedFileIsMadeAgain) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  const LoadOptions options{.cache_dir = path("cache")};
  Load(model, options);
  const fs::path packed = PackedFiles().at(0);
  const std::string good = ReadWholeFile(packed, 1 << 24);
  const auto damage = [&](const std::string& bytes) {
    std::ofstream(packed, std::ios::binary | std::ios::trunc) << bytes;
  };
  std::string flipped = good;
  flipped[20] ^= 1;

  for (const std::string& bad :
       {good.substr(0, good.size() - 64), good.substr(0, 10), std::string(), flipped,
        std::string("not ours at all"), good + good}) {
    damage(bad);
    EXPECT_TRUE(Load(model, options)->is_mapped());
    EXPECT_EQ(ReadWholeFile(packed, 1 << 24), good);
  }
}

TEST_F(ModelLoad, AnyFlippedByteOfTheCacheIsFoundAndPackedAgain) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  const LoadOptions options{.cache_dir = path("cache")};
  Load(model, options);
  const fs::path packed = PackedFiles().at(0);
  for (const fs::path& file : {packed, packed.parent_path() / "weights.crc32c"}) {
    const std::string good = ReadWholeFile(file, 1 << 24);
    for (size_t at = 0; at < good.size(); at += std::max<size_t>(1, good.size() / 16)) {
      SCOPED_TRACE(file.string() + " " + std::to_string(at));
      std::string flipped = good;
      flipped[at] ^= 1;
      std::ofstream(file, std::ios::binary | std::ios::trunc) << flipped;
      EXPECT_TRUE(Load(model, options)->is_mapped());
      EXPECT_EQ(ReadWholeFile(file, 1 << 24), good);
    }
    fs::remove(file);
    EXPECT_TRUE(Load(model, options)->is_mapped());
    EXPECT_EQ(ReadWholeFile(file, 1 << 24), good);
  }
}

TEST_F(ModelLoad, TheCacheTellsSoundDamagedAndStaleEntriesApart) {
  EXPECT_TRUE(InspectPackedCache(path("cache"), pool_).empty());
  using State = PackedEntry::State;
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  Load(model, {.cache_dir = path("cache")});
  const fs::path packed = PackedFiles().at(0);
  const auto state = [&] { return InspectPackedCache(path("cache"), pool_).at(0).state; };
  EXPECT_EQ(state(), State::kSound);
  const std::string good = ReadWholeFile(packed, 1 << 24);
  const auto with = [&](size_t at) {
    std::string bytes = good;
    bytes[at] ^= 1;
    std::ofstream(packed, std::ios::binary | std::ios::trunc) << bytes;
    return state();
  };
  EXPECT_EQ(with(good.size() - 1), State::kDamaged);
  EXPECT_EQ(with(70), State::kDamaged) << "the table";
  EXPECT_EQ(with(0), State::kDamaged) << "the magic";
  EXPECT_EQ(with(8), State::kStale) << "the version";
  fs::resize_file(packed, 30);
  EXPECT_EQ(state(), State::kDamaged);
  std::ofstream(packed, std::ios::binary | std::ios::trunc) << good;
  EXPECT_EQ(state(), State::kSound);
  fs::remove(packed.parent_path() / "weights.crc32c");
  EXPECT_EQ(state(), State::kStale);
  fs::remove(packed);
  EXPECT_EQ(state(), State::kStale);
}

TEST_F(ModelLoad, ACheckpointThatChangesWhileItIsPackedIsRefusedAndLeavesNothing) {
  for (const bool is_cached : {true, false}) {
    SCOPED_TRACE(is_cached);
    const fs::path model = WriteTiny(is_cached ? "m" : "n", {.config = bench::TinyLlamaConfig()});
    LoadOptions options;
    if (is_cached) options.cache_dir = path("cache");
    options.progress = [&](double packed) {
      if (packed > 0.5) std::ofstream(model / "model.safetensors", std::ios::app) << "more";
    };
    try {
      Load(model, options);
      FAIL() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      EXPECT_NE(std::string(error.what()).find("model.safetensors changed"), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(PackedFiles().empty());
  }
}

TEST_F(ModelLoad, ACheckpointThatIsCutShortWhileItIsPackedIsRefused) {
  SurviveMappingFaults();
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  LoadOptions options;
  options.progress = [&](double packed) {
    if (packed > 0) fs::resize_file(model / "model.safetensors", 100);
  };
  try {
    Load(model, options);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss) << error.what();
  }
}

TEST_F(ModelLoad, AFileThatAnotherLoadPublishesMeanwhileServesBoth) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  LoadOptions options{.cache_dir = path("cache")};
  std::shared_ptr<const Model> faster;
  bool asked = false;
  LoadOptions slower = options;
  slower.progress = [&](double packed) {
    if (packed > 0 && !std::exchange(asked, true)) faster = Load(model, options);
  };

  const auto slow = Load(model, slower);

  ASSERT_NE(faster, nullptr);
  EXPECT_TRUE(faster->is_mapped() && slow->is_mapped());
  EXPECT_EQ(slow->packed_path(), faster->packed_path());
  EXPECT_TRUE(fs::exists(faster->packed_path()));
}

TEST_F(ModelLoad, AnEmptyDirectoryInTheCacheIsNoObstacle) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  Load(model, {.cache_dir = path("cache")});
  fs::remove(PackedFiles().at(0));

  EXPECT_TRUE(Load(model, {.cache_dir = path("cache")})->is_mapped());
}

TEST_F(ModelLoad, ACacheThatCannotBeWrittenCostsOnlySharing) {
  const fs::path model = WriteTiny("m", {.config = bench::TinyLlamaConfig()});
  std::ofstream(path("cache")) << "a file where a directory should be";

  EXPECT_FALSE(Load(model, {.cache_dir = path("cache")})->is_mapped());
}

TEST_F(ModelLoad, TheCacheKeepsItsLimitAndDropsTheLeastRecentlyUsed) {
  std::vector<fs::path> models;
  for (const uint64_t seed : {1, 2, 3}) {
    const std::string name = "m" + std::to_string(seed);
    models.push_back(WriteTiny(name, {.config = bench::TinyLlamaConfig(), .seed = seed}));
  }
  const int64_t one = Load(models[0], {.cache_dir = path("cache")})->weight_bytes();
  const LoadOptions options{.cache_dir = path("cache"), .cache_limit_bytes = 2 * one + 1000};
  // Gives each use its own time without waiting for the clock.
  const auto use = [&](size_t which, int minute) {
    std::vector<fs::path> before = PackedFiles();
    const auto model = Load(models[which], options);
    EXPECT_TRUE(model->is_mapped());
    for (const fs::path& file : PackedFiles()) {
      const fs::path entry = file.parent_path();
      const auto age = fs::file_time_type::clock::now() - fs::last_write_time(entry);
      if (age < std::chrono::minutes(30)) {
        fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(24) +
                                       std::chrono::minutes(minute));
      }
    }
  };
  use(0, 1);
  const std::string first = PackedFiles().at(0);
  use(1, 2);
  use(0, 3);
  use(2, 4);  // evicts model 1, the least recently used

  const std::vector<fs::path> left = PackedFiles();

  EXPECT_EQ(left.size(), 2u);
  EXPECT_NE(std::find(left.begin(), left.end(), fs::path(first)), left.end());
  EXPECT_FALSE(
      Load(models[1], {.cache_dir = path("cache"), .cache_limit_bytes = one - 1})->is_mapped())
      << "larger than the whole cache";
}

// S3, sharing: pages of the packed file are shared clean file pages in both processes, not private
// memory.
TEST_F(ModelLoad, TwoProcessesShareThePagesOfOnePackedFile) {
  ModelConfig config = bench::TinyLlamaConfig();
  config.vocab_size = 20000;
  const fs::path model = WriteTiny("m", {.config = config});
  const LoadOptions options{.cache_dir = path("cache")};
  const auto mine = Load(model, options);
  const auto touch = [](const Model& loaded) {
    uint64_t sum = 0;
    const std::byte* bytes = loaded.weights()[0].panels.panels;
    for (int64_t i = 0; i < PanelBytes(DType::kBF16, 20000, 48); i += 64) {
      sum += static_cast<uint64_t>(bytes[i]);
    }
    return sum;
  };
  const auto field_of_smaps = [&](const std::string& field) {
    std::ifstream smaps("/proc/self/smaps");
    int64_t kib = 0;
    bool ours = false;
    for (std::string line; std::getline(smaps, line);) {
      if (line.find('-') < 20 && line.find(' ') > line.find('-') && line.find(':') > 20) {
        ours = line.ends_with("/weights");
      }
      if (ours && line.starts_with(field)) kib += std::stoll(line.substr(field.size()));
    }
    return kib;
  };
  const uint64_t sum = touch(*mine);
  int to_parent[2];
  ASSERT_EQ(pipe(to_parent), 0);

  const pid_t child = fork();
  if (child == 0) {
    ThreadPool pool(1);
    OpsContext ops(Kernels(), pool);
    const auto theirs = Model::Load(ModelDir::Open(model), options, ops);
    const bool same = theirs->is_mapped() && touch(*theirs) == sum;
    const int64_t report[3] = {same, field_of_smaps("Private_Dirty:"),
                               field_of_smaps("Shared_Clean:") + field_of_smaps("Shared_Dirty:")};
    const bool sent = write(to_parent[1], report, sizeof(report)) == sizeof(report);
    _exit(sent ? 0 : 1);
  }
  int64_t report[3] = {};
  ASSERT_EQ(read(to_parent[0], report, sizeof(report)), static_cast<ssize_t>(sizeof(report)));
  int status = 0;
  waitpid(child, &status, 0);
  close(to_parent[0]);
  close(to_parent[1]);

  EXPECT_EQ(report[0], 1) << "the child read other bytes";
  EXPECT_EQ(report[1], 0) << "KiB that the child owns alone";
  EXPECT_GE(report[2], 1800) << "KiB of the file that it shares";
}

}  // namespace
}  // namespace tandem::engine
