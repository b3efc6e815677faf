#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/cores/cores_bench.h"
#include "bench/cores/record.h"
#include "bench/cores/report.h"
#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::bench {
namespace {

ParallelRecord TwoRegions(double task) {
  ParallelRecord record;
  record.regions = {{.serial_seconds = 1, .weight_bytes = 64, .task_seconds = {task, 2, 3}},
                    {.serial_seconds = 0, .weight_bytes = 0, .task_seconds = {4}}};
  record.last_serial_seconds = 2;
  return record;
}

TEST(CoresRecord, TheMedianIsTakenTaskByTask) {
  const ParallelRecord median = MedianRecord({TwoRegions(5), TwoRegions(1), TwoRegions(50)});

  ASSERT_EQ(median.regions.size(), 2U);
  EXPECT_DOUBLE_EQ(median.regions[0].task_seconds[0], 5);
  EXPECT_DOUBLE_EQ(median.regions[0].task_seconds[2], 3);
  EXPECT_DOUBLE_EQ(median.regions[0].weight_bytes, 64);
  EXPECT_DOUBLE_EQ(median.last_serial_seconds, 2);
}

TEST(CoresRecord, RefusesStepsThatWereCutDifferently) {
  ParallelRecord fewer_tasks = TwoRegions(1);
  fewer_tasks.regions[0].task_seconds.pop_back();
  ParallelRecord fewer_regions = TwoRegions(1);
  fewer_regions.regions.pop_back();

  EXPECT_THROW(MedianRecord({TwoRegions(1), fewer_tasks}), Error);
  EXPECT_THROW(MedianRecord({TwoRegions(1), fewer_regions}), Error);
}

TEST(CoresRecord, SumsSerialAndParallelTime) {
  const RecordSummary summary = Summarise(TwoRegions(1));

  EXPECT_EQ(summary.regions, 2);
  EXPECT_EQ(summary.tasks, 4);
  EXPECT_DOUBLE_EQ(summary.serial, 7) << "a region of one task is serial";
  EXPECT_DOUBLE_EQ(summary.seconds, 13);
  EXPECT_DOUBLE_EQ(summary.weight_bytes, 64);
  EXPECT_DOUBLE_EQ(SecondsOfFewTasks(TwoRegions(1), 4), 6);
  EXPECT_DOUBLE_EQ(SecondsOfFewTasks(TwoRegions(1), 3), 0);
}

CoresReport SmallReport() {
  CoresReport report;
  report.machine = {.cpu = "Test CPU",
                    .sockets = 2,
                    .numa_nodes = 2,
                    .logical_cpus = 8,
                    .cache_bytes = 1 << 20,
                    .allowed_cpus = "0-7"};
  report.usable_cores = 4;
  report.family = "llama";
  report.weights = "int8";
  report.kernels = "avx2";
  report.rounds = 3;
  report.read_one = 1e9;
  report.read_all = 2e9;
  report.costs = {.barrier = 1e-6, .claim = 2e-6, .wake_call = 3e-6, .wake = 4e-6};
  report.threads = {1, 2};
  CoresReport::Case of_stream;
  of_stream.name = "one_stream";
  of_stream.tokens = 1;
  of_stream.seconds = {0.5, 0.25};
  of_stream.record = TwoRegions(1e-9);
  of_stream.expected = {1, 1.8};
  SimulatedMachine machine;
  machine.cores = 8;
  machine.sockets = 2;
  machine.placement = Placement::kCopies;
  of_stream.points.push_back({machine, Simulate(of_stream.record, machine), 1.5});
  report.cases.push_back(of_stream);
  return report;
}

TEST(CoresReport, JsonHasTheDocumentedMembers) {
  const auto json = nlohmann::json::parse(ToJson(SmallReport()));

  EXPECT_EQ(json["format"], "tandem-cores-1");
  EXPECT_EQ(json["machine"]["cpu"], "Test CPU");
  EXPECT_EQ(json["machine"]["sockets"], 2);
  EXPECT_EQ(json["machine"]["pinned"], false);
  EXPECT_EQ(json["model"]["weights"], "int8");
  EXPECT_EQ(json["pool_seconds"]["wake_call"], 3e-6);
  EXPECT_EQ(json["read_bytes_per_second"]["all_threads"], 2e9);
  EXPECT_EQ(json["assumed"]["barrier_growth"], "linear");
  const auto& of_stream = json["cases"][0];
  EXPECT_EQ(of_stream["name"], "one_stream");
  EXPECT_EQ(of_stream["measured"][1]["threads"], 2);
  EXPECT_EQ(of_stream["measured"][1]["tokens_per_second"], 4);
  EXPECT_EQ(of_stream["measured"][1]["speedup"], 2);
  EXPECT_EQ(of_stream["measured"][1]["efficiency"], 1);
  EXPECT_EQ(of_stream["measured"][1]["simulated_speedup"], 1.8);
  EXPECT_EQ(of_stream["simulated"][0]["placement"], "copies");
  EXPECT_EQ(of_stream["simulated"][0]["socket_bytes"].size(), 2U);
  EXPECT_EQ(of_stream["record"]["regions"][0]["tasks_ns"],
            nlohmann::json({1, 2'000'000'000, 3'000'000'000}));
  EXPECT_EQ(of_stream["record"]["regions"][0]["weight_bytes"], 64);
}

TEST(CoresReport, TextNamesTheMachineAndTheErrorOfTheSimulation) {
  std::ostringstream out;

  Print(out, SmallReport());

  EXPECT_NE(out.str().find("machine: Test CPU"), std::string::npos);
  EXPECT_NE(out.str().find("-10.0 %"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("The simulation assumes:"), std::string::npos);
}

TEST(CoresBench, MeasuresAndSimulatesATinyModel) {
  const tests::TemporaryDir dir;
  engine::ModelConfig config = TinyModelConfig("llama");
  config.vocab_size = 1024;  // the steps use token numbers up to 1,000
  WriteRandomModel({.config = config}, dir.path() / "model");
  CoresBenchOptions options;
  options.model = dir.path() / "model";
  options.cache_dir = dir.path() / "cache";
  options.threads = 2;
  options.rounds = 2;
  options.prompt_tokens = 16;
  options.batch = 2;
  options.decode_steps = 2;
  options.cores = {1, 6};
  std::ostringstream out;

  const CoresReport report = MeasureCores(out, options, [](int threads) { return threads * 1e9; });

  EXPECT_EQ(report.threads, (std::vector<int>{1, 2}));
  EXPECT_EQ(report.read_all, 2e9);
  ASSERT_EQ(report.cases.size(), 3U);
  for (const CoresReport::Case& measured : report.cases) {
    EXPECT_EQ(measured.seconds.size(), 2U) << measured.name;
    EXPECT_EQ(measured.expected.size(), 2U) << measured.name;
    EXPECT_GT(Summarise(measured.record).weight_bytes, 0) << measured.name;
    // One core; six cores with one socket, and with two in three placements.
    EXPECT_EQ(measured.points.size(), 5U) << measured.name;
    EXPECT_DOUBLE_EQ(measured.points[0].speedup, 1) << measured.name;
  }
  EXPECT_EQ(report.cases[0].tokens, 16);
  EXPECT_EQ(report.cases[2].tokens, 2);
}

TEST(CoresBench, RefusesCoreCountsBelowOne) {
  CoresBenchOptions options;
  options.cores = {4, 0};
  std::ostringstream out;

  EXPECT_THROW(RunCoresBench(out, options), Error);
}

}  // namespace
}  // namespace tandem::bench
