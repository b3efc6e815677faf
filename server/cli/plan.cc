#include "training/plan/plan.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "config/app_config.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/ops_context.h"
#include "server/cli/spec_paths.h"
#include "server/cli/verbs.h"
#include "training/observe/roof.h"
#include "training/plan/sharding.h"
#include "training/plan/simulate.h"

namespace tandem::server {

void AddPlan(CLI::App& command, int& exit_code) {
  struct Flags {
    std::string spec;
    std::vector<std::string> overrides;
    std::string memory;
    bool json = false;
    bool program = false;
    int64_t ranks = 0;
    double simulated_s = 0;
    training::LinkModel link;
  };
  const auto flags = std::make_shared<Flags>();
  command.add_option("spec", flags->spec, "training spec (YAML or JSON)")->required();
  command.add_option("overrides", flags->overrides, "key=value words that override the spec");
  command.add_option("--memory", flags->memory,
                     "memory budget to check against, such as 8G (default: "
                     "resources.memory_max_bytes, else the free memory)");
  command.add_flag("--json", flags->json, "print JSON");
  command.add_flag("--program", flags->program,
                   "also print the steps of the program, with bytes and FLOPs");
  command
      .add_option("--sharding", flags->ranks,
                  "print the bytes and rows of each of so many ranks instead (see mpirun)")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option(
          "--simulate", flags->simulated_s,
          "print the communication of a step on 2 to 256 ranks instead, from its seconds on "
          "one rank (perf/step_time_seconds of a run)")
      ->check(CLI::PositiveNumber);
  command.add_option("--link-gbit", flags->link.gbit_per_s, "of --simulate: a rank's link, Gbit/s")
      ->check(CLI::PositiveNumber);
  command.add_option("--link-us", flags->link.latency_us, "of --simulate: microseconds a message")
      ->check(CLI::NonNegativeNumber);
  command.callback([flags, &exit_code] {
    training::TrainSpec spec = training::LoadTrainSpec(flags->spec, flags->overrides);
    FindSpecPaths(spec);
    if (!flags->memory.empty()) {
      spec.resources.memory_max_bytes = config::ParseBytes(flags->memory, "--memory");
    }
    if (flags->ranks > 0) {
      std::fputs(training::DescribeSharding(spec, flags->ranks).c_str(), stdout);
      return;
    }
    if (flags->simulated_s > 0) {
      const std::string table = training::DescribeSimulation(spec, flags->simulated_s, flags->link);
      std::fputs(table.c_str(), stdout);
      return;
    }
    ThreadPool pool(static_cast<int>(spec.resources.threads));
    engine::OpsContext ops(engine::Kernels(), pool);
    const training::TrainingPlan plan = training::PlanTraining(
        spec, {.flops_per_second = training::RoofFlops(ops, spec.compute, {})});
    std::string text;
    if (flags->json) {
      text = training::PlanJson(plan) + "\n";
    } else {
      if (flags->program) text += training::Print(plan.memory.program) + "\n";
      text += training::DescribePlan(plan) + "\n" + training::DescribePolicies(spec);
    }
    std::fputs(text.c_str(), stdout);
    if (!plan.fits()) exit_code = 1;
  });
}

}  // namespace tandem::server
