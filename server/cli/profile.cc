#include "training/run/profile.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/spec_paths.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

struct ProfileFlags {
  std::string spec;
  std::vector<std::string> overrides;
  std::string sweep;
  training::ProfileOptions options;
  ProgressFlags progress;
};

void Profile(const ProfileFlags& flags) {
  ConfigureLog("info", LogFormat::kText);
  const ShownProgress shown(flags.progress);
  std::vector<std::string> values = {""};
  if (!flags.sweep.empty()) values = training::SweepWords(flags.sweep);
  // Read all specs before the first run, so that a fault in the last value shows at once.
  std::vector<training::TrainSpec> specs;
  for (const std::string& value : values) {
    std::vector<std::string> words = flags.overrides;
    if (!value.empty()) words.push_back(value);
    training::TrainSpec spec = training::LoadTrainSpec(flags.spec, words);
    FindSpecPaths(spec);
    specs.push_back(std::move(spec));
  }
  std::printf("%-32s %10s %12s %10s %7s %12s %12s\n", "value", "step ms", "tokens/s", "GFLOP/s",
              "MFU", "planned MiB", "peak MiB");
  // Peak FLOP/s, measured once per dtype and thread count so that rows are comparable.
  std::map<std::pair<engine::DType, int64_t>, double> roofs;
  for (size_t i = 0; i < specs.size(); ++i) {
    training::ProfileOptions options = flags.options;
    double& roof = roofs[{specs[i].compute, specs[i].resources.threads}];
    options.roof_flops = roof;
    const training::ProfileRow row = training::ProfileSpec(specs[i], options, CacheDir());
    roof = row.roof_flops;
    std::printf("%-32s %10.1f %12.0f %10.1f %6.1f%% %12.1f %12.1f\n",
                values[i].empty() ? "spec unchanged" : values[i].c_str(), row.step_seconds * 1e3,
                row.tokens_per_second, row.tflops * 1e3, row.mfu * 100,
                static_cast<double>(row.predicted_bytes) / 0x1p20,
                static_cast<double>(row.measured_bytes) / 0x1p20);
    std::fflush(stdout);
  }
}

}  // namespace

void AddProfile(CLI::App& command, int&) {
  const auto flags = std::make_shared<ProfileFlags>();
  command.add_option("spec", flags->spec, "training spec (YAML or JSON)")->required();
  command.add_option("overrides", flags->overrides, "key=value words that override the spec");
  command.add_option(
      "--sweep", flags->sweep,
      "key=value,value,…: print one row per value, such as per_device_batch_size=64,256");
  command.add_option("--steps", flags->options.steps, "measured steps per value")
      ->check(CLI::Range(1, 1'000'000));
  command.add_option("--warmup", flags->options.warmup, "unmeasured steps per value before these")
      ->check(CLI::Range(0, 1'000'000));
  AddProgressFlags(command, flags->progress);
  command.callback([flags] { Profile(*flags); });
}

}  // namespace tandem::server
