#include "bench/cores/report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "bench/cores/record.h"
#include "bench/measure/print_formatted.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

void PrintMachine(std::ostream& out, const CoresReport& report) {
  const MachineInfo& machine = report.machine;
  PrintLine(out, "machine: %s", machine.cpu.c_str());
  PrintLine(out,
            "%d sockets, %d NUMA nodes, %d logical processors, %d usable cores; this process may "
            "use %s; threads are not pinned",
            machine.sockets, machine.numa_nodes, machine.logical_cpus, report.usable_cores,
            machine.allowed_cpus.c_str());
  PrintLine(out, "model: %s, %s, kernels %s; medians of %d rounds", report.family.c_str(),
            report.weights.c_str(), report.kernels.c_str(), report.rounds);
  PrintLine(out, "read loop: %.1f GB/s by 1 thread, %.1f by %d", report.read_one / 1e9,
            report.read_all / 1e9, report.threads.back());
  PrintLine(out,
            "pool, two threads: barrier %.2f us, claim %.3f us, waking a sleeper %.1f us of the "
            "caller and %.1f us of the sleeper",
            report.costs.barrier * 1e6, report.costs.claim * 1e6, report.costs.wake_call * 1e6,
            report.costs.wake * 1e6);
}

void PrintMeasured(std::ostream& out, const CoresReport& report, const CoresReport::Case& c) {
  const RecordSummary summary = Summarise(c.record);
  PrintLine(out, "\n%s, %lld tokens per step: %lld regions of %lld tasks, %.0f MB of weights",
            c.name.c_str(), static_cast<long long>(c.tokens),
            static_cast<long long>(summary.regions), static_cast<long long>(summary.tasks),
            summary.weight_bytes / 1e6);
  PrintLine(out,
            "recorded %.3f ms (%.3f without clocks), %.2f %% of it serial; regions of fewer than "
            "16 tasks %.1f %%, of fewer than 64 %.1f %%",
            summary.seconds * 1e3, c.seconds.front() * 1e3, 100 * summary.serial / summary.seconds,
            100 * SecondsOfFewTasks(c.record, 16) / summary.seconds,
            100 * SecondsOfFewTasks(c.record, 64) / summary.seconds);
  PrintLine(out, "measured:  threads  tokens/s  speed-up  efficiency  simulated  its error");
  for (size_t i = 0; i < report.threads.size(); ++i) {
    const double speedup = c.measured_speedup(i);
    PrintLine(out, "%18d %9.1f %9.2f %9.1f %% %10.2f %8.1f %%", report.threads[i],
              static_cast<double>(c.tokens) / c.seconds[i], speedup,
              100 * speedup / report.threads[i], c.expected[i],
              100 * (c.expected[i] / speedup - 1));
  }
}

void PrintPoints(std::ostream& out, const CoresReport::Case& c) {
  PrintLine(out,
            "simulated; shares of the time in %%, and megabytes by memory of each socket\n"
            "cores sockets   placement  tokens/s speed-up serial   work imbal. dispatch remote "
            "memory barrier    MB 0   MB 1 remote");
  for (const CoresReport::Point& point : c.points) {
    const SimulatedStep& step = point.step;
    const auto share = [&](double seconds) { return 100 * seconds / step.seconds(); };
    PrintLine(
        out, "%5d %7d %11s %9.1f %8.2f %6.1f %6.1f %6.1f %8.1f %6.1f %6.1f %7.1f %7.0f %6.0f %6.0f",
        point.machine.cores, point.machine.sockets,
        std::string(PlacementName(point.machine.placement)).c_str(),
        static_cast<double>(c.tokens) / c.seconds.front() * point.speedup, point.speedup,
        share(step.serial), share(step.work), share(step.imbalance), share(step.dispatch),
        share(step.remote), share(step.bandwidth), share(step.barrier), step.socket_bytes[0] / 1e6,
        step.socket_bytes[1] / 1e6, step.remote_bytes / 1e6);
  }
  const SimulatedStep& one = c.points.front().step;
  PrintLine(out, "critical path %.3f ms: at most %.1f times one core, with any number of cores",
            one.critical_path * 1e3, Summarise(c.record).seconds / one.critical_path);
}

void PrintAssumptions(std::ostream& out, const CoresReport& report) {
  if (report.cases.empty() || report.cases.front().points.empty()) return;
  const SimulatedMachine& machine = report.cases.front().points.front().machine;
  PrintLine(out, "\nThe simulation assumes:");
  PrintLine(out, "- a task takes as long as on one core here, whatever the others do;");
  PrintLine(out,
            "- the worker that is free first claims the next task; claims follow one another;");
  PrintLine(out, "- workers sleep after %.0f us without a task, and the caller wakes one per task;",
            machine.spin_seconds * 1e6);
  PrintLine(out, "- a barrier of n workers costs %s times that of two;",
            machine.barrier_growth == BarrierGrowth::kLinear ? "n - 1" : "log2(n)");
  if (machine.socket_bytes_per_second > 0) {
    PrintLine(out, "- a socket's memory delivers %.0f GB/s, and a step reads each weight once;",
              machine.socket_bytes_per_second / 1e9);
  } else {
    PrintLine(out, "- weights stay in a cache, because they fit into half of one here;");
  }
  PrintLine(out, "- a task with weights of the other socket takes %.2f times as long;",
            machine.remote_slowdown);
  PrintLine(out, "- clocks do not fall when more cores work, and caches and links are never full.");
  PrintLine(out, "Under measured, it takes one socket with the memory of the read loop here.");
}

Json RecordJson(const ParallelRecord& record) {
  const auto nanoseconds = [](double seconds) {
    return static_cast<int64_t>(std::llround(seconds * 1e9));
  };
  Json regions = Json::array();
  for (const ParallelRecord::Region& region : record.regions) {
    Json tasks = Json::array();
    for (const double seconds : region.task_seconds) tasks.push_back(nanoseconds(seconds));
    regions.push_back({{"serial_ns", nanoseconds(region.serial_seconds)},
                       {"weight_bytes", static_cast<int64_t>(region.weight_bytes)},
                       {"tasks_ns", std::move(tasks)}});
  }
  return {{"regions", std::move(regions)},
          {"last_serial_ns", nanoseconds(record.last_serial_seconds)}};
}

Json PointJson(const CoresReport::Point& point) {
  const SimulatedMachine& machine = point.machine;
  const SimulatedStep& step = point.step;
  return {{"cores", machine.cores},
          {"sockets", machine.sockets},
          {"placement", PlacementName(machine.placement)},
          {"speedup", point.speedup},
          {"seconds", step.seconds()},
          {"serial", step.serial},
          {"work", step.work},
          {"imbalance", step.imbalance},
          {"remote", step.remote},
          {"dispatch", step.dispatch},
          {"bandwidth", step.bandwidth},
          {"barrier", step.barrier},
          {"critical_path", step.critical_path},
          {"socket_bytes", step.socket_bytes},
          {"remote_bytes", step.remote_bytes}};
}

Json CaseJson(const CoresReport& report, const CoresReport::Case& c) {
  Json measured = Json::array();
  for (size_t i = 0; i < report.threads.size(); ++i) {
    measured.push_back({{"threads", report.threads[i]},
                        {"seconds", c.seconds[i]},
                        {"tokens_per_second", static_cast<double>(c.tokens) / c.seconds[i]},
                        {"speedup", c.measured_speedup(i)},
                        {"efficiency", c.measured_speedup(i) / report.threads[i]},
                        {"simulated_speedup", c.expected[i]}});
  }
  Json simulated = Json::array();
  for (const CoresReport::Point& point : c.points) simulated.push_back(PointJson(point));
  return {{"name", c.name},
          {"tokens", c.tokens},
          {"measured", std::move(measured)},
          {"simulated", std::move(simulated)},
          {"record", RecordJson(c.record)}};
}

}  // namespace

void Print(std::ostream& out, const CoresReport& report) {
  PrintMachine(out, report);
  for (const CoresReport::Case& c : report.cases) {
    PrintMeasured(out, report, c);
    if (!c.points.empty()) PrintPoints(out, c);
  }
  PrintAssumptions(out, report);
}

std::string ToJson(const CoresReport& report) {
  Json cases = Json::array();
  for (const CoresReport::Case& c : report.cases) cases.push_back(CaseJson(report, c));
  Json assumed = Json::object();
  if (!report.cases.empty() && !report.cases.front().points.empty()) {
    const SimulatedMachine& machine = report.cases.front().points.front().machine;
    assumed = {
        {"socket_bytes_per_second", machine.socket_bytes_per_second},
        {"remote_slowdown", machine.remote_slowdown},
        {"barrier_growth", machine.barrier_growth == BarrierGrowth::kLinear ? "linear" : "log"},
        {"spin_seconds", machine.spin_seconds}};
  }
  const Json json = {
      {"format", "tandem-cores-1"},
      {"machine",
       {{"cpu", report.machine.cpu},
        {"sockets", report.machine.sockets},
        {"numa_nodes", report.machine.numa_nodes},
        {"logical_cpus", report.machine.logical_cpus},
        {"usable_cores", report.usable_cores},
        {"allowed_cpus", report.machine.allowed_cpus},
        {"pinned", false}}},
      {"model",
       {{"family", report.family}, {"weights", report.weights}, {"kernels", report.kernels}}},
      {"rounds", report.rounds},
      {"read_bytes_per_second",
       {{"one_thread", report.read_one}, {"all_threads", report.read_all}}},
      {"pool_seconds",
       {{"barrier", report.costs.barrier},
        {"claim", report.costs.claim},
        {"wake_call", report.costs.wake_call},
        {"wake", report.costs.wake}}},
      {"assumed", std::move(assumed)},
      {"cases", std::move(cases)}};
  return json.dump() + "\n";
}

}  // namespace tandem::bench
