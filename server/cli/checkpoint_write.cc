#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "config/app_config.h"
#include "convert/reshard.h"
#include "engine/base/error.h"
#include "server/cli/checkpoint_verbs.h"
#include "server/cli/job_child.h"
#include "server/cli/model_options.h"
#include "training/checkpoint/checkpoint_garbage.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// "out/" and "out" are the same directory, but only the second has a name.
fs::path Named(const std::string& text) {
  const fs::path path(text);
  return path.has_filename() ? path : path.parent_path();
}

struct GcFlags {
  std::string dir;
  training::GarbageOptions options;
  bool json = false;
};

void Gc(const GcFlags& flags) {
  const training::GarbageResult result = training::CollectGarbage(flags.dir, flags.options);
  Json removed = Json::array(), kept = Json::array();
  int64_t bytes = 0;
  for (const training::Garbage& each : result.removed) {
    bytes += each.bytes;
    removed.push_back({{"path", each.path.string()}, {"bytes", each.bytes}, {"why", each.why}});
    if (!flags.json) {
      std::printf("%s %s: %s, %.1f MiB\n", flags.options.dry_run ? "would remove" : "removed",
                  each.path.c_str(), each.why.c_str(), MiB(each.bytes));
    }
  }
  for (const fs::path& step : result.kept) kept.push_back(step.filename().string());
  if (flags.json) {
    const Json out = {
        {"dry_run", flags.options.dry_run}, {"removed", removed}, {"kept", kept}, {"bytes", bytes}};
    std::printf("%s\n", out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return;
  }
  std::printf("%zu removed, %.1f MiB; %zu steps stay%s\n", result.removed.size(), MiB(bytes),
              result.kept.size(), flags.options.dry_run ? " (dry run: nothing was touched)" : "");
}

void AddGc(CLI::App& command) {
  const auto flags = std::make_shared<GcFlags>();
  CLI::App* gc = command.add_subcommand(
      "gc",
      "remove old steps and what killed writers left; never the newest sound step, nor the best");
  gc->add_option("dir", flags->dir, "a run's directory, or that of its steps")->required();
  gc->add_option("--keep", flags->options.keep, "how many of the newest steps stay")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  gc->add_flag("--dry-run", flags->options.dry_run, "only say what would be removed");
  gc->add_flag("--json", flags->json, "as JSON");
  gc->callback([flags] { Gc(*flags); });
}

void AddReshard(CLI::App& command) {
  struct Flags {
    std::string source, target, shard_bytes = "4G";
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* reshard = command.add_subcommand(
      "reshard", "write a model's tensors, bit for bit, in safetensors files of another size");
  reshard->add_option("source", flags->source, "a Hugging Face directory or a checkpoint")
      ->required();
  reshard->add_option("target", flags->target, "directory that is made")->required();
  reshard
      ->add_option("--shard-bytes", flags->shard_bytes,
                   "of tensors in one file, at most, such as 500M; a larger tensor has its own")
      ->capture_default_str();
  reshard->callback([flags] {
    const StopOnSignal stop;
    convert::ReshardOptions options;
    options.shard_bytes = config::ParseBytes(flags->shard_bytes, "--shard-bytes");
    options.cache_dir = CacheDir();
    options.advance = [token = stop.token()](int64_t) {
      if (token.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped");
    };
    const convert::ReshardResult made =
        convert::Reshard(Named(flags->source), Named(flags->target), options);
    const Json out = {{"path", flags->target},
                      {"shards", made.shards},
                      {"tensors", made.tensors},
                      {"bytes", made.bytes}};
    std::printf("%s\n", out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  });
}

}  // namespace

void AddCheckpointWriting(CLI::App& command, int& /*exit_code*/) {
  AddGc(command);
  AddReshard(command);
}

}  // namespace tandem::server
