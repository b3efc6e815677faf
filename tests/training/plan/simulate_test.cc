#include "training/plan/simulate.h"

#include "engine/base/attempt.h"
#include "tests/training/tiny_run.h"

namespace tandem::training {
namespace {

class SimulateTest : public TinyRunTest {
 protected:
  TrainSpec Spec(const std::string& word) const {
    return ParseTrainSpec(
        "{}", "test",
        std::vector<std::string>{"load_parameters_path=" + (dir_.path() / "base").string(),
                                 "dataset_path=" + (dir_.path() / "train.txt").string(), "steps=1",
                                 "max_target_length=32", "parallel.bucket_bytes=4096", word});
  }
};

TEST_F(SimulateTest, HidesCommunicationBehindTheBackwardPass) {
  const TrainSpec spec = Spec("gradient_accumulation_steps=2");
  const LinkModel fast{.gbit_per_s = 1e6, .latency_us = 0, .add_gbyte_per_s = 1e6};
  const LinkModel slow{.gbit_per_s = 0.01, .latency_us = 0, .add_gbyte_per_s = 1e6};
  for (const int64_t fsdp : {1, 2}) {
    const SimulatedStep hidden = SimulateStep(spec, 2, fsdp, 1.0, fast);
    EXPECT_NEAR(hidden.efficiency(), 1, 1e-3) << fsdp;
    const SimulatedStep exposed = SimulateStep(spec, 2, fsdp, 1e-6, slow);
    EXPECT_EQ(exposed.sent_bytes, hidden.sent_bytes);
    // Nothing hides it: the time is that of the bytes.
    EXPECT_NEAR(exposed.exposed_s, exposed.sent_bytes * 8 / 0.01e9, 1e-3 * exposed.exposed_s);
  }
}

// Two ranks send half of the gradients, and half of the sums: all together once.
TEST_F(SimulateTest, CountsTheBytesOfARank) {
  const TrainSpec spec = Spec("precision.compute=f32");
  const double two = SimulateStep(spec, 2, 1, 1, {}).sent_bytes;
  EXPECT_GT(two, 0);
  EXPECT_NEAR(SimulateStep(spec, 256, 1, 1, {}).sent_bytes, two * 2 * 255 / 256, 1);
  EXPECT_EQ(SimulateStep(spec, 1, 1, 1, {}).sent_bytes, 0);
  // Gathers forward, backward and after the update, and one sum.
  EXPECT_GT(SimulateStep(spec, 2, 2, 1, {}).sent_bytes, two);
}

// Options whose runs sum after the backward pass.
TEST_F(SimulateTest, ShowsWhatCannotHide) {
  const LinkModel slow{.gbit_per_s = 0.01, .latency_us = 0, .add_gbyte_per_s = 1e6};
  const auto of = [&](const std::string& word, int64_t fsdp) {
    return SimulateStep(Spec(word), 4, fsdp, 1.0, slow);
  };
  for (const int64_t fsdp : {1, 2}) {
    const SimulatedStep hidden = of("gradient_accumulation_steps=4", fsdp);
    const SimulatedStep none = of("parallel.overlap=false", fsdp);
    EXPECT_GT(none.exposed_s, of("parallel.overlap=true", fsdp).exposed_s) << fsdp;
    if (fsdp == 1) {
      EXPECT_NEAR(none.exposed_s, none.sent_bytes * 8 / 0.01e9, 1e-3 * none.exposed_s);
    }
    TrainSpec tree = Spec("world_invariant=16");
    tree.train.gradient_accumulation_steps = 4;
    const SimulatedStep sums = SimulateStep(tree, 4, fsdp, 1.0, slow);
    EXPECT_NEAR(sums.sent_bytes, hidden.sent_bytes, 1) << fsdp;
    EXPECT_GT(sums.exposed_s, hidden.exposed_s) << fsdp;
  }
  // Half of the exchange for the sums, half for the masters.
  const SimulatedStep shared = of("shard_optimizer_over_data=true", 1);
  EXPECT_NEAR(shared.sent_bytes, of("parallel.overlap=true", 1).sent_bytes, 1);
  EXPECT_NEAR(shared.exposed_s, shared.sent_bytes * 8 / 0.01e9, 1e-3 * shared.exposed_s);
}

// The gradients fill one bucket exactly: an empty one behind it would cost messages.
TEST_F(SimulateTest, NoBucketIsEmpty) {
  TrainSpec spec = Spec("precision.compute=f32");
  const LinkModel link{.gbit_per_s = 1e9, .latency_us = 1e6, .add_gbyte_per_s = 1e9};
  spec.parallel.bucket_bytes = int64_t{1} << 40;
  const double one = SimulateStep(spec, 2, 1, 1e-9, link).exposed_s;
  EXPECT_NEAR(one, 2, 1e-3) << "two messages of a second";
  spec.parallel.bucket_bytes =
      static_cast<int64_t>(SimulateStep(spec, 2, 1, 1e-9, link).sent_bytes);
  EXPECT_NEAR(SimulateStep(spec, 2, 1, 1e-9, link).exposed_s, one, 1e-3);
}

TEST_F(SimulateTest, PrintsAssumptionsAndRefusesNonsense) {
  const std::string text = DescribeSimulation(Spec("ici_fsdp_parallelism=2"), 2.5, {});
  EXPECT_NE(text.find("2.500 s"), std::string::npos) << text;
  EXPECT_NE(text.find("128x2"), std::string::npos) << text;
  const std::string eight = DescribeSimulation(Spec("mesh=data=-1,fsdp=8"), 1, {});
  EXPECT_EQ(eight.find("    4  "), std::string::npos) << eight;
  EXPECT_NE(eight.find("2x8"), std::string::npos) << eight;
  EXPECT_TRUE(ErrorOf([&] { DescribeSimulation(Spec("mesh=data=3"), 1, {}); }));
  EXPECT_TRUE(ErrorOf([&] { DescribeSimulation(Spec("steps=1"), 0, {}); }));
  EXPECT_TRUE(ErrorOf([&] { DescribeSimulation(Spec("steps=1"), 1, {.gbit_per_s = -1}); }));
}

}  // namespace
}  // namespace tandem::training
