#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "config/app_config.h"
#include "convert/formats/params_spec.h"
#include "server/cli/checkpoint/checkpoint_verbs.h"
#include "server/cli/convert_verb.h"
#include "training/checkpoint/checkpoint_garbage.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Drops a trailing slash, because "out/" has no filename.
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
  std::printf("%zu removed, %.1f MiB; %zu steps kept%s\n", result.removed.size(), MiB(bytes),
              result.kept.size(), flags.options.dry_run ? " (dry run: nothing was touched)" : "");
}

void AddGc(CLI::App& command) {
  const auto flags = std::make_shared<GcFlags>();
  CLI::App* gc = command.add_subcommand("gc",
                                        "remove old steps and leftovers of killed writers; keep "
                                        "the newest undamaged step and the best");
  gc->add_option("dir", flags->dir, "directory of a run, or of its steps")->required();
  gc->add_option("--keep", flags->options.keep, "number of newest steps to keep")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  gc->add_flag("--dry-run", flags->options.dry_run, "list what would be removed; remove nothing");
  gc->add_flag("--json", flags->json, "print JSON");
  gc->callback([flags] { Gc(*flags); });
}

struct WriteFlags {
  std::string source, target;
  std::string dtype = "bf16";
  std::string shard_bytes = "1G";
  bool unroll = false;
  int threads = 0;
  ProgressFlags progress;
};

CLI::App* AddWriter(CLI::App& command, const char* name, const char* description,
                    WriteFlags& flags) {
  CLI::App* verb = command.add_subcommand(name, description);
  verb->add_option("source", flags.source,
                   "checkpoint, model, or directory of a run's steps (the newest step is read)")
      ->required();
  verb->add_option("target", flags.target, "directory to create")->required();
  verb->add_option("--threads", flags.threads, "compute threads (0: one per physical core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  AddProgressFlags(*verb, flags.progress);
  return verb;
}

void AddExportParams(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<WriteFlags>();
  CLI::App* verb = AddWriter(
      command, "export-params",
      "write the weights alone, in bf16, as a checkpoint that is also a Hugging Face directory",
      *flags);
  verb->add_option("--dtype", flags->dtype,
                   "weight type: bf16, f16 or f32 (rounded once from the master weights), or keep")
      ->capture_default_str();
  verb->add_flag("--unroll", flags->unroll,
                 "accepted for MaxText's sake; this format always has one tensor per layer");
  verb->callback([flags, &exit_code] {
    exit_code = ConvertAndPrint(
        convert::ExportParamsSpec(Named(flags->source), Named(flags->target), flags->dtype),
        flags->threads, flags->progress);
  });
}

void AddReshard(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<WriteFlags>();
  CLI::App* verb = AddWriter(
      command, "reshard",
      "rewrite a model's tensors, bit for bit, in safetensors files of another size", *flags);
  verb->add_option(
          "--shard-bytes", flags->shard_bytes,
          "most bytes of tensors per file, such as 500M; a larger tensor gets its own file")
      ->capture_default_str();
  verb->callback([flags, &exit_code] {
    exit_code = ConvertAndPrint(
        convert::ReshardSpec(Named(flags->source), Named(flags->target),
                             config::ParseBytes(flags->shard_bytes, "--shard-bytes")),
        flags->threads, flags->progress);
  });
}

}  // namespace

void AddCheckpointWriting(CLI::App& command, int& exit_code) {
  AddGc(command);
  AddExportParams(command, exit_code);
  AddReshard(command, exit_code);
}

}  // namespace tandem::server
