// Seam S3: a machine holds the packed weights of a model once. Two processes that open the model
// map the same file; the gradient of a frozen weight's input reads the same panels.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "engine/ops/matmul.h"
#include "engine/tensor/bfloat16.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

// The mappings of one file in /proc/self/smaps.
struct Mapping {
  int64_t inode = 0;
  int64_t rss_kb = 0;
  int64_t shared_kb = 0;   // pages that another process maps too
  int64_t private_kb = 0;  // pages of this process alone
};

Mapping ReadMapping(const std::filesystem::path& file) {
  std::ifstream smaps("/proc/self/smaps");
  Mapping mapping;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream fields(line);
    std::string first;
    fields >> first;
    if (first.find('-') != std::string::npos && first.back() != ':') {
      std::string permissions, offset, device, path;
      int64_t inode = 0;
      fields >> permissions >> offset >> device >> inode >> path;
      inside = path == file.string();
      if (inside) mapping.inode = inode;
      continue;
    }
    if (!inside) continue;
    int64_t kb = 0;
    fields >> kb;
    if (first == "Rss:") mapping.rss_kb += kb;
    if (first == "Shared_Clean:" || first == "Shared_Dirty:") mapping.shared_kb += kb;
    if (first == "Private_Clean:" || first == "Private_Dirty:") mapping.private_kb += kb;
  }
  return mapping;
}

std::filesystem::path FindPackedFile(const std::filesystem::path& cache_dir) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache_dir)) {
    if (entry.is_regular_file() && entry.path().filename() == "weights") return entry.path();
  }
  return {};
}

std::shared_ptr<const Model> LoadFrom(const std::filesystem::path& dir,
                                      const std::filesystem::path& cache_dir) {
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  return Model::Load(ModelDir::Open(dir), {.dtype = DType::kBF16, .cache_dir = cache_dir}, ops);
}

// Reads every panel to make its pages resident.
void TouchWeights(const Model& model) {
  volatile uint64_t sum = 0;  // the reads must happen
  for (const Weight& weight : model.weights()) {
    if (weight.panels.panels == nullptr) continue;
    const int64_t bytes = PanelBytes(weight.panels.dtype, weight.panels.n, weight.panels.k);
    for (int64_t i = 0; i < bytes; i += 512) {
      sum = sum + static_cast<uint64_t>(weight.panels.panels[i]);
    }
  }
}

TEST(S3Sharing, TwoProcessesMapOnePackedFile) {
  const tests::TemporaryDir dir;
  ModelConfig config = bench::TinyLlamaConfig();
  config.hidden_dim = 512;
  config.ffn_dim = 1024;
  bench::WriteRandomModel({.config = config}, dir.path() / "model");
  const std::filesystem::path cache = dir.path() / "cache";
  int to_child[2];
  int from_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(from_child), 0);

  // The child waits until the parent has packed the file, then maps the same file.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char go = 0;
    if (read(to_child[0], &go, 1) != 1) _exit(1);  // the parent holds its mapping now
    const auto model = LoadFrom(dir.path() / "model", cache);
    TouchWeights(*model);
    const Mapping mapping = ReadMapping(FindPackedFile(cache));
    const bool written = write(from_child[1], &mapping, sizeof(mapping)) == sizeof(mapping);
    const bool waited = read(to_child[0], &go, 1) == 1;  // stay mapped while the parent measures
    _exit(written && waited && model->is_mapped() ? 0 : 1);
  }
  const auto model = LoadFrom(dir.path() / "model", cache);
  TouchWeights(*model);
  ASSERT_EQ(write(to_child[1], "1", 1), 1);
  Mapping theirs;
  ASSERT_EQ(read(from_child[0], &theirs, sizeof(theirs)), static_cast<ssize_t>(sizeof(theirs)));
  const Mapping ours = ReadMapping(FindPackedFile(cache));
  ASSERT_EQ(write(to_child[1], "1", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);

  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(model->is_mapped());
  EXPECT_NE(ours.inode, 0);
  EXPECT_EQ(ours.inode, theirs.inode);
  EXPECT_GT(ours.rss_kb * 1024, model->weight_bytes() / 2);
  EXPECT_GT(ours.shared_kb, ours.rss_kb * 9 / 10);
  EXPECT_EQ(ours.private_kb + ours.shared_kb, ours.rss_kb);
  EXPECT_GT(theirs.shared_kb, theirs.rss_kb * 9 / 10);
}

TEST(S3Sharing, InputGradientOfAFrozenWeightReadsTheServedPanels) {
  const tests::TemporaryDir dir;
  bench::WriteRandomModel({.config = bench::TinyLlamaConfig()}, dir.path() / "model");
  const ModelDir source = ModelDir::Open(dir.path() / "model");
  for (const KernelTable* table : RunnableKernelTables()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(std::string(table->key) + " " + std::string(DTypeName(dtype)));
      ThreadPool pool(2);
      OpsContext ops(*table, pool);
      const auto model =
          Model::Load(source, {.dtype = dtype, .cache_dir = dir.path() / "cache"}, ops);
      ASSERT_TRUE(model->is_mapped());
      for (const Weight& weight : model->weights()) {
        if (weight.spec->kind != WeightKind::kMatrix) continue;
        const int64_t n = weight.panels.n;
        const int64_t k = weight.panels.k;
        constexpr int64_t kRows = 5;
        const int64_t stride = RowStride(dtype, n);
        std::mt19937 rng(7);
        std::uniform_real_distribution<float> uniform(-1, 1);
        std::vector<float> dy(static_cast<size_t>(kRows * n));
        for (float& x : dy) x = Bf16ToFloat(FloatToBf16(uniform(rng)));
        AlignedBuffer rounded(static_cast<size_t>(kRows * stride) * DTypeBytes(dtype));
        for (int64_t r = 0; r < kRows; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            if (dtype == DType::kBF16) {
              rounded.as<Bf16>()[r * stride + i] = FloatToBf16(dy[r * n + i]);
            } else {
              rounded.as<float>()[r * stride + i] = dy[r * n + i];
            }
          }
        }
        std::vector<float> w(static_cast<size_t>(n * k));
        ConvertToF32(*source.FindTensor(weight.spec->name), w);

        std::vector<float> dx(static_cast<size_t>(kRows * k));
        MatMulInputGrad(ops, {rounded.data(), dtype, kRows, n, stride}, weight.panels, dx.data(), k,
                        false);

        for (int64_t r = 0; r < kRows; ++r) {
          for (int64_t i = 0; i < k; ++i) {
            double want = 0;
            double size = 0;
            for (int64_t j = 0; j < n; ++j) {
              const double term = static_cast<double>(dy[r * n + j]) * w[j * k + i];
              want += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(dx[r * k + i], want, 1e-5 * size) << weight.spec->name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::engine
