#include "bench/cores/simulate.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

ParallelRecord OneRegion(std::vector<double> tasks, double weight_bytes = 0) {
  return {.regions = {{.serial_seconds = 0, .weight_bytes = weight_bytes, .task_seconds = tasks}}};
}

SimulatedMachine Cores(int cores, int sockets = 1, Placement placement = Placement::kOneNode) {
  SimulatedMachine machine;
  machine.cores = cores;
  machine.sockets = sockets;
  machine.placement = placement;
  return machine;
}

TEST(Simulate, OneCoreTakesTheSumWithoutAnyCost) {
  ParallelRecord record = OneRegion({3, 1, 2});
  record.regions[0].serial_seconds = 4;
  record.last_serial_seconds = 5;
  SimulatedMachine machine = Cores(1);
  machine.barrier_seconds = machine.claim_seconds = machine.wake_call_seconds = 100;

  const SimulatedStep step = Simulate(record, machine);

  EXPECT_DOUBLE_EQ(step.seconds(), 15);
  EXPECT_DOUBLE_EQ(step.serial, 9);
  EXPECT_DOUBLE_EQ(step.work, 6);
}

TEST(Simulate, TheWorkerThatIsFreeFirstTakesTheNextTask) {
  const SimulatedStep even = Simulate(OneRegion({3, 1, 1, 1}), Cores(2));
  EXPECT_DOUBLE_EQ(even.seconds(), 3);
  EXPECT_DOUBLE_EQ(even.imbalance, 0);

  const SimulatedStep late = Simulate(OneRegion({1, 1, 1, 3}), Cores(2));
  EXPECT_DOUBLE_EQ(late.seconds(), 4) << "the long task begins after one second";
  EXPECT_DOUBLE_EQ(late.work, 3);
  EXPECT_DOUBLE_EQ(late.imbalance, 1);
}

TEST(Simulate, TheCriticalPathIsTheCallersWorkAndTheLongestTaskOfEachRegion) {
  ParallelRecord record;
  record.regions = {{.serial_seconds = 2, .weight_bytes = 0, .task_seconds = {3, 1}},
                    {.serial_seconds = 0, .weight_bytes = 0, .task_seconds = {5}},
                    {.serial_seconds = 1, .weight_bytes = 0, .task_seconds = {1, 1, 4}}};
  record.last_serial_seconds = 1;

  const SimulatedStep step = Simulate(record, Cores(100));

  EXPECT_DOUBLE_EQ(step.critical_path, 16);
  EXPECT_DOUBLE_EQ(step.seconds(), 16);
  EXPECT_DOUBLE_EQ(step.serial, 9) << "a region of one task runs on the caller";
  EXPECT_DOUBLE_EQ(Simulate(record, Cores(1)).critical_path, 16);
}

TEST(Simulate, ABarrierGrowsWithTheWorkersThatHadTasks) {
  SimulatedMachine machine = Cores(4);
  machine.barrier_seconds = 10;
  EXPECT_DOUBLE_EQ(Simulate(OneRegion(std::vector<double>(8, 1)), machine).barrier, 30);
  EXPECT_DOUBLE_EQ(Simulate(OneRegion({1, 1}), machine).barrier, 10);

  machine.barrier_growth = BarrierGrowth::kLogarithmic;
  EXPECT_DOUBLE_EQ(Simulate(OneRegion(std::vector<double>(8, 1)), machine).barrier, 20);
}

TEST(Simulate, ClaimsFollowOneAnother) {
  SimulatedMachine machine = Cores(2);
  machine.claim_seconds = 0.5;

  const SimulatedStep step = Simulate(OneRegion({1, 1}), machine);

  EXPECT_DOUBLE_EQ(step.seconds(), 2) << "the second claim ends after one second";
  EXPECT_DOUBLE_EQ(step.dispatch, 1);
}

TEST(Simulate, TheCallerWakesASleeperForEachTaskButItsOwn) {
  SimulatedMachine machine = Cores(3);
  machine.spin_seconds = 1;
  machine.wake_call_seconds = 1;
  machine.wake_seconds = 2;

  // The caller begins after one second, the woken worker after three.
  EXPECT_DOUBLE_EQ(Simulate(OneRegion({10, 10}), machine).seconds(), 13);
  EXPECT_DOUBLE_EQ(Simulate(OneRegion({1, 1}), machine).seconds(), 3) << "the worker is too late";
  EXPECT_DOUBLE_EQ(Simulate(OneRegion({10, 10, 10}), machine).seconds(), 14) << "two calls";
}

TEST(Simulate, AWorkerSpinsBeforeItSleeps) {
  SimulatedMachine machine = Cores(2);
  machine.spin_seconds = 1;
  machine.wake_call_seconds = 1;
  ParallelRecord record = OneRegion({10, 10});
  record.regions.push_back(record.regions[0]);
  EXPECT_DOUBLE_EQ(Simulate(record, machine).dispatch, 1) << "awake at the second region";

  record.regions[1].serial_seconds = 1.5;
  EXPECT_DOUBLE_EQ(Simulate(record, machine).dispatch, 2) << "asleep again";
}

TEST(Simulate, ARegionEndsNoEarlierThanItsBytesArrive) {
  SimulatedMachine machine = Cores(4);
  machine.socket_bytes_per_second = 10;

  const SimulatedStep slow = Simulate(OneRegion({1, 1, 1, 1}, 100), machine);
  EXPECT_DOUBLE_EQ(slow.seconds(), 10);
  EXPECT_DOUBLE_EQ(slow.bandwidth, 9);

  const SimulatedStep fast = Simulate(OneRegion({1, 1, 1, 1}, 5), machine);
  EXPECT_DOUBLE_EQ(fast.seconds(), 1);
  EXPECT_DOUBLE_EQ(fast.bandwidth, 0);
}

TEST(Simulate, EachSocketDeliversItsOwnBytes) {
  const ParallelRecord record = OneRegion({1, 1, 1, 1}, 100);
  const auto with = [&](Placement placement) {
    SimulatedMachine machine = Cores(4, 2, placement);
    machine.socket_bytes_per_second = 10;
    return Simulate(record, machine);
  };

  const SimulatedStep one_node = with(Placement::kOneNode);
  EXPECT_DOUBLE_EQ(one_node.seconds(), 10);
  EXPECT_DOUBLE_EQ(one_node.socket_bytes[0], 100);
  EXPECT_DOUBLE_EQ(one_node.socket_bytes[1], 0);
  EXPECT_DOUBLE_EQ(one_node.remote_bytes, 50);

  for (const Placement placement : {Placement::kFirstTouch, Placement::kCopies}) {
    const SimulatedStep step = with(placement);
    EXPECT_DOUBLE_EQ(step.seconds(), 5) << PlacementName(placement);
    EXPECT_DOUBLE_EQ(step.socket_bytes[0], 50) << PlacementName(placement);
    EXPECT_DOUBLE_EQ(step.socket_bytes[1], 50) << PlacementName(placement);
    EXPECT_DOUBLE_EQ(step.remote_bytes, 0) << PlacementName(placement);
  }
}

TEST(Simulate, RemoteWeightsSlowTheTasksThatReadThem) {
  const auto with = [](Placement placement, double weight_bytes) {
    SimulatedMachine machine = Cores(2, 2, placement);
    machine.remote_slowdown = 3;
    return Simulate(OneRegion({1, 1}, weight_bytes), machine).remote;
  };

  EXPECT_DOUBLE_EQ(with(Placement::kOneNode, 8), 2);
  EXPECT_DOUBLE_EQ(with(Placement::kOneNode, 0), 0) << "no weights";
  EXPECT_DOUBLE_EQ(with(Placement::kFirstTouch, 8), 0);
  EXPECT_DOUBLE_EQ(with(Placement::kCopies, 8), 0);
}

// With first touch, a core of one socket does not help with the other's tasks.
TEST(Simulate, FirstTouchKeepsTasksAtTheirSocket) {
  const ParallelRecord record = OneRegion({4, 4, 1, 1});

  EXPECT_DOUBLE_EQ(Simulate(record, Cores(2, 2, Placement::kFirstTouch)).seconds(), 8);
  EXPECT_DOUBLE_EQ(Simulate(record, Cores(2, 2, Placement::kCopies)).seconds(), 5);
}

TEST(Simulate, RefusesMachinesThatCannotBe) {
  const ParallelRecord record = OneRegion({1, 1});
  SimulatedMachine fast_remote = Cores(2, 2);
  fast_remote.remote_slowdown = 0.5;

  EXPECT_THROW(Simulate(record, Cores(0)), Error);
  EXPECT_THROW(Simulate(record, Cores(3, 2)), Error);
  EXPECT_THROW(Simulate(record, Cores(3, 3)), Error);
  EXPECT_THROW(Simulate(record, fast_remote), Error);
}

}  // namespace
}  // namespace tandem::bench
