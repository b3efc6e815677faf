// Merges of adapters into their base.

#include "engine/tools/merge_adapter.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/model/adapter.h"
#include "engine/model/find_weight.h"
#include "tests/support/adapters.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/random_gguf.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

std::string Text(const fs::path& path) { return ReadWholeFile(path, 64 << 20); }

std::vector<std::string> FilesIn(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class MergeAdapterTest : public testing::Test {
 protected:
  MergeAdapterTest() : pool_(2), ops_(Kernels(), pool_) {}

  MergeReport Merge(const fs::path& base, const fs::path& adapter, const fs::path& cache = {}) {
    const ModelDir dir = ModelDir::Open(base);
    return MergeAdapter(
        dir, LoraAdapter::Open(adapter),
        {.texts = {{"config.json", *dir.ReadText("config.json")}}, .cache_dir = cache},
        dir_.path() / "merged", ops_);
  }

  std::optional<Error> Fault(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "was not refused";
    return std::nullopt;
  }

  // Makes a tiny Llama and an adapter of all its layers.
  void MakeLlama(DType stored = DType::kBF16) {
    bench::RandomModelSpec model;
    model.config = bench::TinyLlamaConfig();
    model.stored = stored;
    bench::WriteRandomModel(model, base_);
    tests::WriteRandomAdapter(base_, 3, 7, adapter_);
  }

  tests::TemporaryDir dir_;
  const fs::path base_ = dir_.path() / "base";
  const fs::path adapter_ = dir_.path() / "adapter";
  const fs::path merged_ = dir_.path() / "merged";
  ThreadPool pool_;
  OpsContext ops_;
};

// Every element is the f64 sum, within the error of f32 sums and one rounding. Tensors without an
// adapter keep the base's bytes.
TEST_F(MergeAdapterTest, WeightsAreTheSumsRoundedOnceAndAllOthersStayAsTheyAre) {
  for (const std::string& name : tests::GoldenNames()) {
    SCOPED_TRACE(name);
    const fs::path base = tests::LoadGolden(name).dir;
    fs::remove_all(adapter_);
    fs::remove_all(merged_);
    tests::WriteRandomAdapter(base, 5, 3, adapter_);
    const LoraAdapter files = LoraAdapter::Open(adapter_);

    Merge(base, adapter_);

    const ModelDir before = ModelDir::Open(base), after = ModelDir::Open(merged_);
    const ModelOutline outline = OutlineModel(before, {});
    const auto weights = FindModules(files, *outline.family, outline.config, outline.specs);
    for (size_t w = 0; w < outline.specs.size(); ++w) {
      const WeightSpec& spec = outline.specs[w];
      const std::optional<StoredTensor> was = FindWeight(before, spec);
      const std::optional<StoredTensor> is = FindWeight(after, spec);
      ASSERT_TRUE(is) << spec.name;
      ASSERT_EQ(is->view.dtype, was->view.dtype);
      ASSERT_EQ(is->view.shape, spec.source_shape);
      const auto found = std::find_if(
          weights.begin(), weights.end(),
          [&](const AdaptedWeight& one) { return one.weight == static_cast<int32_t>(w); });
      if (found == weights.end()) {
        EXPECT_EQ(DecodeTensor(*is), DecodeTensor(*was)) << spec.name;  // parts have strides
        continue;
      }
      const LoraModule& module = files.modules()[static_cast<size_t>(found - weights.begin())];
      std::vector<float> a(static_cast<size_t>(module.a.elements()));
      std::vector<float> b(static_cast<size_t>(module.b.elements()));
      ConvertToF32(module.a, a);
      ConvertToF32(module.b, b);
      const std::vector<float> old = DecodeTensor(*was), now = DecodeTensor(*is);
      const double step = was->view.dtype == DType::kF32 ? 0x1p-22 : 0x1p-8;
      size_t wrong = 0;
      for (int64_t n = 0; n < spec.n; ++n) {
        for (int64_t k = 0; k < spec.k; ++k) {
          const bool out_in = spec.layout == SourceLayout::kOutIn;
          const auto at = static_cast<size_t>(out_in ? n * spec.k + k : k * spec.n + n);
          double sum = 0, size = std::fabs(double{old[at]});
          for (int64_t r = 0; r < module.rank; ++r) {
            const double part = double{b[static_cast<size_t>(n * module.rank + r)]} *
                                a[static_cast<size_t>(r * spec.k + k)] * module.scale;
            sum += part;
            size += std::fabs(part);
          }
          wrong += std::fabs(old[at] + sum - now[at]) > step * size ? 1 : 0;
        }
      }
      EXPECT_EQ(wrong, 0u) << spec.name;
    }
  }
}

TEST_F(MergeAdapterTest, TheMergedModelServesWhatBaseAndAdapterServe) {
  for (const std::string& name : tests::GoldenNames()) {
    SCOPED_TRACE(name);
    const tests::Golden golden = tests::LoadGolden(name);
    fs::remove_all(adapter_);
    fs::remove_all(merged_);
    tests::WriteRandomAdapter(golden.dir, 5, 3, adapter_);

    const MergeReport report = Merge(golden.dir, adapter_);

    EXPECT_GT(report.max_abs_difference, 0);
    EXPECT_LE(report.max_abs_difference, report.bound);
    // Rounded merged routers choose other experts for some tokens.
    const bool chooses =
        OutlineModel(ModelDir::Open(golden.dir), {}).config.experts.router.n_experts > 0;
    // A missing or transposed adapter would be far outside.
    if (!chooses) {
      EXPECT_GT(report.moved_by_adapter, 4 * report.max_abs_difference);
    }
    tests::ModelHarness beside(golden.dir, {.dtype = DType::kF32});
    beside.UseAdapter(beside.LoadAdapter(adapter_));
    tests::ModelHarness inside(merged_, {.dtype = DType::kF32});
    const std::vector<TokenId>& ids = golden.sequences[0].input_ids;
    const std::vector<float> a = beside.Prefill(ids, 0), b = inside.Prefill(ids, 0);
    float largest = 0, difference = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::fabs(a[i]));
      difference = std::max(difference, std::fabs(a[i] - b[i]));
    }
    if (!chooses) {
      EXPECT_LE(difference,
                MergeBound(report.dtype == "f32" ? DType::kF32 : DType::kBF16) * largest);
    }
    const auto json = nlohmann::json::parse(Text(merged_ / "merge.json"));
    EXPECT_EQ(json["max_abs_difference"], report.max_abs_difference);
    EXPECT_EQ(json["layers"], report.layers);
  }
}

TEST_F(MergeAdapterTest, ConfigSaysTheTypeOfTheWeights) {
  MakeLlama(DType::kF32);
  auto config = nlohmann::ordered_json::parse(Text(base_ / "config.json"));
  config["torch_dtype"] = "bfloat16";
  WriteFileAtomically(base_ / "config.json", config.dump());

  EXPECT_EQ(Merge(base_, adapter_).dtype, "f32");

  EXPECT_EQ(nlohmann::json::parse(Text(merged_ / "config.json"))["torch_dtype"], "float32");
}

TEST_F(MergeAdapterTest, BlocksOfIntegersAreRefusedWithTheWayOut) {
  const fs::path file = tests::WriteRandomGguf(Encoding::kQ4_K, dir_.path());
  bench::RandomModelSpec model;
  model.config = bench::TinyLlamaConfig();
  bench::WriteRandomModel(model, base_);
  tests::WriteRandomAdapter(base_, 3, 7, adapter_);

  const auto error = Fault([&] { Merge(file, adapter_); });

  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  for (const char* part : {"Q4_K", "the original bf16", "lora.base_dtype", "beside"}) {
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
  }
  EXPECT_FALSE(fs::exists(merged_));
}

TEST_F(MergeAdapterTest, AnAdapterOfAnotherModelIsRefusedByTensor) {
  MakeLlama();
  bench::RandomModelSpec other;
  other.config = bench::TinyLlamaConfig();
  other.config.ffn_dim += 16;
  bench::WriteRandomModel(other, dir_.path() / "other");

  const auto error = Fault([&] { Merge(dir_.path() / "other", adapter_); });

  EXPECT_NE(std::string(error->what()).find("mlp.down_proj.lora_A"), std::string::npos)
      << error->what();
  EXPECT_FALSE(fs::exists(merged_));
}

TEST_F(MergeAdapterTest, AFullDiskIsSaidAndLeavesNothing) {
  MakeLlama();
  const std::vector<std::string> before = FilesIn(dir_.path());
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{16 << 10, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto error = Fault([&] { Merge(base_, adapter_); });
  setrlimit(RLIMIT_FSIZE, &old);

  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_NE(std::string(error->what()).find("model.safetensors"), std::string::npos)
      << error->what();
  EXPECT_EQ(FilesIn(dir_.path()), before);
}

// The two ranks of this adapter nearly cancel. Beside its base it computes with their bf16
// remainder; merged in f32, with their exact difference.
TEST_F(MergeAdapterTest, LogitsThatDifferTooMuchAreAnErrorAndNothingIsKept) {
  MakeLlama();
  tests::WriteRandomAdapter(base_, 2, 7, dir_.path() / "cancels");
  const LoraAdapter random = LoraAdapter::Open(dir_.path() / "cancels");
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (const LoraModule& module : random.modules()) {
    for (const bool is_a : {true, false}) {
      const ConstTensorView& view = is_a ? module.a : module.b;
      std::vector<float>& tensor = values.emplace_back(static_cast<size_t>(view.elements()));
      ConvertToF32(view, tensor);
      const auto length = static_cast<size_t>(view.shape[is_a ? 1 : 0]);
      for (size_t i = 0; i < length; ++i) {
        float& first = tensor[is_a ? i : 2 * i];
        float& second = tensor[is_a ? length + i : 2 * i + 1];
        first *= 300;
        second = is_a ? first * 1.001f : -first;
      }
      tensors.push_back(
          {is_a ? module.a_name : module.b_name,
           {reinterpret_cast<const std::byte*>(tensor.data()), DType::kF32, view.shape}});
    }
  }
  fs::create_directories(adapter_);
  fs::remove(adapter_ / "adapter_model.safetensors");
  WriteSafetensors(adapter_ / "adapter_model.safetensors", tensors, {});
  fs::copy_file(dir_.path() / "cancels/adapter_config.json", adapter_ / "adapter_config.json",
                fs::copy_options::overwrite_existing);
  const std::vector<std::string> before = FilesIn(dir_.path());

  const auto error = Fault([&] { Merge(base_, adapter_); });

  EXPECT_EQ(error->code(), ErrorCode::kDataLoss);
  EXPECT_NE(std::string(error->what()).find("differ by up to"), std::string::npos) << error->what();
  EXPECT_EQ(FilesIn(dir_.path()), before);
}

// Packed weights in a cache are mapped, so a merge needs memory for a few weights only. Two thirds
// of the model would exceed this limit.
TEST_F(MergeAdapterTest, OneWeightAfterTheOtherIsInMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own memory does not live within such a limit";
#endif
  bench::RandomModelSpec model;
  model.config = bench::TinyLlamaConfig();
  model.config.n_layers = 24;
  model.config.hidden_dim = 384;
  model.config.ffn_dim = 1024;
  model.config.attention = {.n_heads = 6, .n_kv_heads = 6, .head_dim = 64};
  bench::WriteRandomModel(model, base_);
  tests::WriteRandomAdapter(base_, 2, 7, adapter_);
  const auto data_bytes = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmData:")) return std::stoll(line.substr(7)) << 10;
    }
    return 0LL;
  };
  const auto bytes = static_cast<int64_t>(fs::file_size(base_ / "model.safetensors"));
  const int64_t room = 24 << 20;  // two f32 weights, the threads' heap, the model's runner
  ASSERT_LT(room, bytes * 2 / 3) << "the test could not tell";
  rlimit old{};
  getrlimit(RLIMIT_DATA, &old);
  const rlimit limit{static_cast<rlim_t>(data_bytes() + room), old.rlim_max};
  setrlimit(RLIMIT_DATA, &limit);
  EXPECT_NO_THROW(Merge(base_, adapter_, dir_.path() / "cache"));
  setrlimit(RLIMIT_DATA, &old);

  EXPECT_TRUE(fs::exists(merged_ / "merge.json"));
}

}  // namespace
}  // namespace tandem::engine
