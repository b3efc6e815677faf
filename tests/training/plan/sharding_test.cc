#include "training/plan/sharding.h"

#include <algorithm>

#include "engine/base/attempt.h"
#include "tests/training/tiny_run.h"
#include "training/setup/memory_needs.h"
#include "training/setup/model_files.h"

namespace tandem::training {
namespace {

class ShardingTest : public TinyRunTest {
 protected:
  TrainSpec Spec(const std::string& word) const {
    return ParseTrainSpec(
        "{}", "test",
        std::vector<std::string>{"load_parameters_path=" + (dir_.path() / "base").string(),
                                 "dataset_path=" + (dir_.path() / "train.txt").string(), "steps=1",
                                 "max_target_length=32", "per_device_batch_size=8", word});
  }
};

TEST_F(ShardingTest, ShowsSharedMomentsAndReplicatedState) {
  const std::string plain = DescribeSharding(Spec("elastic=false"), 4);
  EXPECT_NE(plain.find("data 4 x fsdp 1 x tensor 1"), std::string::npos) << plain;
  EXPECT_NE(plain.find("4 micro-batches of 2 rows, 1 for each rank"), std::string::npos) << plain;
  EXPECT_NE(plain.find("100 % of masters"), std::string::npos) << plain;
  const std::string sharded = DescribeSharding(Spec("shard_optimizer_over_data=true"), 4);
  EXPECT_NE(sharded.find("  shared\n"), std::string::npos) << sharded;
  EXPECT_EQ(sharded.find("100 % of masters"), std::string::npos) << sharded;
  EXPECT_NE(DescribeSharding(Spec("elastic=false"), 1).find("sends 0.0 MiB"), std::string::npos);
}

TEST_F(ShardingTest, ShowsSharedParameters) {
  const std::string text = DescribeSharding(Spec("ici_fsdp_parallelism=4"), 4);
  EXPECT_NE(text.find("data 1 x fsdp 4 x tensor 1"), std::string::npos) << text;
  EXPECT_NE(text.find("; 0 % of masters"), std::string::npos) << text;
  EXPECT_NE(text.find("gathered"), std::string::npos) << text;
}

// Ranks divide trained weights only.
TEST_F(ShardingTest, FrozenWeightsAreWholeOnEveryRank) {
  TrainSpec spec = Spec("model.trainable=layers\\.0\\.");
  const ModelFiles files = LoadModelFiles(spec);
  const auto bytes_of = [&](const char* name) {
    for (const MemoryClass& one : FindMemoryNeeds(spec, files).classes) {
      if (one.name == name) return one.bytes;
    }
    ADD_FAILURE() << name;
    return int64_t{0};
  };
  const int64_t masters = bytes_of("masters");
  const int64_t trained = bytes_of("gradients");  // four bytes an element, as masters
  ASSERT_LT(trained, masters);
  spec.step_shape = StepShape{2, 4, 4, 4};
  EXPECT_EQ(bytes_of("gradients"), (trained + 3) / 4);
  EXPECT_EQ(bytes_of("masters"), masters - trained + (trained + 3) / 4);
}

// A rank holds a file at a time: of weights (2 bytes an element) or of moments (8), the low halves
// of masters (2) and the moving average (4). Gathered weights are dropped before.
TEST_F(ShardingTest, CountsTheStateThatACheckpointGathers) {
  const auto expect_export = [&](const std::string& word, int64_t fsdp, int64_t bytes_per_element) {
    SCOPED_TRACE(word);
    TrainSpec spec = Spec(word);
    spec.step_shape = StepShape{4, 2, 2, fsdp};
    const ModelFiles files = LoadModelFiles(spec);
    const MemoryNeeds needs = FindMemoryNeeds(spec, files);
    int64_t elements = 0;
    for (const auto& weight : needs.program.weight_specs) elements += weight.n * weight.k;
    int64_t gathered = 0;
    int64_t exported = -1;
    for (const MemoryClass& one : needs.classes) {
      if (one.name == "gathered") gathered = one.bytes;
      if (one.name == "export") exported = one.bytes;
    }
    EXPECT_EQ(gathered > 0, fsdp > 1);
    EXPECT_EQ(exported, std::max<int64_t>(0, bytes_per_element * elements - gathered));
  };
  expect_export("precision.compute=bf16", 1, 2);
  expect_export("shard_optimizer_over_data=true", 1, 2 + 8);
  expect_export("precision.compute=bf16", 2, 8 + 2);
  expect_export("train.optimizer.ema_decay=0.5", 2, 8 + 2 + 4);
}

// The halves of matrices; norms and embeddings are whole.
TEST_F(ShardingTest, ShowsSharedMatrices) {
  const std::string text = DescribeSharding(Spec("ici_tensor_parallelism=2"), 4);
  EXPECT_NE(text.find("data 2 x fsdp 1 x tensor 2"), std::string::npos) << text;
  EXPECT_NE(text.find("2 micro-batches of 4 rows, 1 for each rank"), std::string::npos) << text;
  EXPECT_NE(text.find("over the tensor axis"), std::string::npos) << text;
  EXPECT_EQ(text.find("100 % of masters"), std::string::npos) << text;
}

TEST_F(ShardingTest, RefusesANumberOfRanksThatDoesNotSuit) {
  const auto error = ::tandem::ErrorOf([&] { DescribeSharding(Spec("elastic=false"), 3); });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("must be a multiple of 3"), std::string::npos);
  EXPECT_TRUE(::tandem::ErrorOf([&] { DescribeSharding(Spec("ici_data_parallelism=2"), 4); }));
}

}  // namespace
}  // namespace tandem::training
