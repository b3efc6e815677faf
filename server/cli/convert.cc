#include "convert/convert.h"

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/app_config.h"
#include "convert/formats/check_spec.h"
#include "convert/formats/formats.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/thread_pool.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/objects/fetched_path.h"
#include "engine/objects/object_url.h"
#include "server/cli/convert_verb.h"
#include "server/cli/job_child.h"
#include "server/cli/maxtext_words.h"
#include "server/cli/model_options.h"
#include "server/cli/spec_paths.h"
#include "server/cli/stores/stored_target.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxSpecBytes = 1 << 20;

struct ConvertFlags {
  std::string source;
  std::vector<std::string> words;  // of MaxText's to_maxtext
  std::string base;
  std::string target;
  convert::ConvertSpec spec;
  std::string shard_bytes = "1G";
  int64_t max_shard_mib = 0;  // 0: not given
  bool scan = false;
  bool unroll = false;
  bool verify = true;
  bool no_certificate = false;
  int threads = 0;
  std::string job_dir;
  ProgressFlags progress;
};

convert::ConvertResult Run(const convert::ConvertSpec& spec, const JobContext& context,
                           int threads) {
  ThreadPool pool(threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  return convert::Convert(spec, context, ops);
}

// Fetches objects that the spec names. `stored` receives a target on an object store, whose local
// path the result has.
convert::ConvertSpec WithLocalPaths(const convert::ConvertSpec& spec, std::stop_token stop,
                                    std::optional<StoredTarget>& stored) {
  convert::ConvertSpec local = spec;
  if (const auto url = engine::ParseObjectUrl(spec.target.string())) {
    const convert::Format* const format = convert::FindFormat(spec.format);
    const bool is_file = format != nullptr && format->IsFile();
    stored.emplace(*url, is_file, spec.overwrite, CacheDir(), stop);
    local.target = stored->local();
    local.overwrite = true;  // a local output without its upload is of a killed command
  }
  for (fs::path* const path : {&local.source, &local.base}) {
    const auto url = engine::ParseObjectUrl(path->string());
    if (!url) continue;
    *path = engine::FetchObjectPath(*url, engine::ObjectOptionsFromEnvironment(*url), stop);
  }
  return local;
}

}  // namespace

int ConvertAndPrint(const convert::ConvertSpec& spec, int threads, const ProgressFlags& progress) {
  ConfigureLog("info", LogFormat::kText);
  std::optional<ShownProgress> shown(progress);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow fails the write, not the process
  const StopOnSignal stop;
  JobContext context;
  // Its progress is shown as that of tasks.
  context.report = [&shown](const ProgressEvent& event) {
    if (event.kind != "warning") return;
    shown->Print([&] { std::fprintf(stderr, "warning: %s\n", event.message.c_str()); });
  };
  context.cache_dir = CacheDir();
  context.stop = stop.token();
  std::optional<StoredTarget> stored;
  const convert::ConvertSpec local = WithLocalPaths(spec, context.stop, stored);
  const convert::ConvertResult result = Run(local, context, threads);
  if (stored) stored->Publish();
  shown.reset();
  auto json = nlohmann::ordered_json::parse(convert::ConvertResultJson(result));
  if (stored) json["url"] = spec.target.string();
  std::printf("%s\n", json.dump(2).c_str());
  return 0;
}

namespace {

int ConvertJob(const ConvertFlags& flags) {
  const fs::path dir = fs::absolute(flags.job_dir).lexically_normal();
  return EndInResult(dir, "", [&] {
    const fs::path file = dir / "spec.json";
    const convert::ConvertSpec spec =
        convert::ParseConvertSpec(engine::ReadWholeFile(file, kMaxSpecBytes), file.string());
    LowerPriority(0);
    const OpenJob job(dir);
    const auto cancelled = ErrorOf({ErrorCode::kCancelled}, [&] {
      const convert::ConvertResult made = Run(spec, job.context(), flags.threads);
      nlohmann::ordered_json result = {{"status", "succeeded"}};
      result.update(nlohmann::ordered_json::parse(convert::ConvertResultJson(made)));
      WriteResult(dir, result);
    });
    return cancelled ? kExitTryAgain : 0;
  });
}

}  // namespace

void AddConvert(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ConvertFlags>();
  command.add_option(
      "source", flags->source,
      "model: Hugging Face directory, Tandem or MaxText (Orbax) checkpoint, GGUF or llama2.c file; "
      "or directory of a PEFT adapter, with --base. The format is detected from the files. Also "
      "s3:// and gs:// URLs");
  command.add_option("target", flags->target,
                     "directory or file to create, or its s3:// or gs:// URL");
  command.add_option("words", flags->words,
                     "key=value words of MaxText's to_maxtext may replace SOURCE and TARGET: "
                     "hf_model_path=DIR base_output_directory=DIR scan_layers=true …");
  command.add_option("--to", flags->spec.format, "format of the target: " + convert::FormatNames())
      ->capture_default_str();
  command.add_option("--base", flags->base,
                     "adapter source: directory of the model to merge the adapter into; --to peft: "
                     "directory or GGUF file of the model that the source was tuned from");
  command
      .add_option(
          "--rank", flags->spec.peft.rank,
          "--to peft: rank of the adapter that approximates the source's difference from --base")
      ->check(CLI::Range(int64_t{1}, convert::kMostRank));
  command
      .add_option(
          "--alpha", flags->spec.peft.alpha,
          "--to peft: lora_alpha; the adapter's scale is lora_alpha / rank (default: the rank)")
      ->check(CLI::Range(convert::kLeastAlpha, convert::kMostAlpha));
  command.add_option("--dtype", flags->spec.dtype,
                     "f32, bf16 or f16 for all weights; q8_0 or q4_0 for the matrices of a GGUF "
                     "file (default: the source's types)");
  const auto scan = command.add_flag(
      "--scan", flags->scan,
      "stack the layers of a kind in one tensor, where the format has both layouts");
  command
      .add_flag("--unroll", flags->unroll,
                "write one tensor per layer, where the format has both layouts")
      ->excludes(scan);
  const auto shard_bytes =
      command
          .add_option(
              "--shard-bytes", flags->shard_bytes,
              "most bytes per file of weights, such as 500M or 2G, in formats that split them")
          ->capture_default_str();
  command
      .add_option("--max-shard-mib", flags->max_shard_mib, "older form of --shard-bytes, in MiB")
      ->check(CLI::Range(1, 1 << 30))
      ->excludes(shard_bytes);
  command.add_flag("--ocdbt,!--no-ocdbt", flags->spec.maxtext.ocdbt,
                   "--to maxtext: one OCDBT database (default), or a directory per array");
  command
      .add_option("--zarr", flags->spec.maxtext.zarr, "--to maxtext: Zarr version of the arrays")
      ->check(CLI::IsMember({2, 3}))
      ->capture_default_str();
  command.add_option(
      "--maxtext-model", flags->spec.maxtext.model,
      "--to maxtext, for families with two layouts of q and k: a model's name such as " +
          convert::MaxTextFormExamples() + " (default: q and k in pairs)");
  command.add_flag("--all-bf16", flags->spec.maxtext.all_bf16,
                   "--to maxtext in bf16: also write norms, embeddings and queries in bf16 where "
                   "it loses precision (default: f32 for these)");
  command.add_flag("--overwrite", flags->spec.overwrite, "replace an existing target");
  command.add_flag("--verify,!--no-verify", flags->verify,
                   "read the target again and compare it with the source (default; always done for "
                   "merged weights)");
  command.add_flag(
      "--no-certificate", flags->no_certificate,
      "do not run source and target to compare their outputs; convert.json records this");
  command.add_option("--max-kl", flags->spec.max_kl,
                     "fail if the KL divergence from the source exceeds this value at any position "
                     "(nats; 0: no difference at all)");
  command.add_option("--threads", flags->threads, "compute threads (0: one per physical core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  AddProgressFlags(command, flags->progress);
  command.add_option("--job", flags->job_dir,
                     "job directory: read spec.json there, write events.jsonl and result.json, run "
                     "at the lowest priority");
  command.footer(
      "The target is written to TARGET.part and renamed at the end. The same command resumes a\n"
      "conversion that was killed or ended by a full disk. A stopped conversion leaves nothing,\n"
      "except with --job: its next start resumes.");
  command.callback([flags, &exit_code] {
    if (!flags->job_dir.empty()) {
      exit_code = ConvertJob(*flags);
      return;
    }
    std::vector<std::string> words = {flags->source, flags->target};
    words.insert(words.end(), flags->words.begin(), flags->words.end());
    if (HasMaxTextWords(words)) {
      const std::string note = ReadMaxTextWords(words, &flags->spec);
      if (!note.empty()) std::fprintf(stderr, "note: %s\n", note.c_str());
      flags->source = flags->spec.source.string();
      flags->target = flags->spec.target.string();
    } else if (!flags->words.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "convert: " + flags->words.front() + " is one argument too many");
    }
    if (flags->source.empty() || flags->target.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "convert: name SOURCE and TARGET, or --job DIR");
    }
    flags->spec.source = NewestCheckpointIn(flags->source);
    flags->spec.base = flags->base;
    flags->spec.target = flags->target;
    // Drop a trailing slash, because "out/" has no filename.
    if (!flags->spec.target.has_filename()) {
      flags->spec.target = flags->spec.target.parent_path();
    }
    flags->spec.max_shard_bytes = flags->max_shard_mib > 0
                                      ? flags->max_shard_mib << 20
                                      : config::ParseBytes(flags->shard_bytes, "--shard-bytes");
    if (flags->scan) flags->spec.layout = "scanned";
    if (flags->unroll) flags->spec.layout = "unscanned";
    flags->spec.verify = flags->verify;
    flags->spec.certificate = !flags->no_certificate;
    exit_code = ConvertAndPrint(flags->spec, flags->threads, flags->progress);
  });
}

}  // namespace tandem::server
