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
