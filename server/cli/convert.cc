#include "convert/convert.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "config/app_config.h"
#include "convert/formats/check_spec.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "server/cli/convert_verb.h"
#include "server/cli/job_child.h"
#include "server/cli/model_options.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxSpecBytes = 1 << 20;
constexpr std::chrono::seconds kLineInterval{10};

struct ConvertFlags {
  std::string source;
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
};

convert::ConvertResult Run(const convert::ConvertSpec& spec, const JobContext& context,
                           int threads) {
  ThreadPool pool(threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  return convert::Convert(spec, context, ops);
}

// Shows progress: one line that changes on a terminal, a line every ten seconds elsewhere.
std::function<void(const ProgressEvent&)> ShowProgress() {
  const auto describe = [](const ProgressEvent& event) {
    char percent[16];
    std::snprintf(percent, sizeof percent, "[%3d %%] ", static_cast<int>(event.step));
    return percent + event.message;
  };
  if (isatty(STDERR_FILENO) == 1) {
    return [describe, width = size_t{0}](const ProgressEvent& event) mutable {
      std::string line = describe(event);
      const size_t length = line.size();
      if (length < width) line.append(width - length, ' ');
      width = length;
      std::fprintf(stderr, "\r%s%s", line.c_str(), event.step == event.total_steps ? "\n" : "");
      std::fflush(stderr);
    };
  }
  using Clock = std::chrono::steady_clock;
  return [describe, next = Clock::now() + kLineInterval](const ProgressEvent& event) mutable {
    if (Clock::now() < next) return;
    next = Clock::now() + kLineInterval;
    std::fprintf(stderr, "%s\n", describe(event).c_str());
  };
}

}  // namespace

int ConvertAndPrint(const convert::ConvertSpec& spec, int threads) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow fails the write, not the process
  const StopOnSignal stop;
  JobContext context;
  context.report = [show = ShowProgress()](const ProgressEvent& event) {
    if (event.kind != "warning") return show(event);
    std::fprintf(stderr, "warning: %s\n", event.message.c_str());
  };
  context.cache_dir = CacheDir();
  context.stop = stop.token();
  const convert::ConvertResult result = Run(spec, context, threads);
  const auto json = nlohmann::ordered_json::parse(convert::ConvertResultJson(result));
  std::printf("%s\n", json.dump(2).c_str());
  return 0;
}

namespace {

int ConvertJob(const ConvertFlags& flags) {
  const fs::path dir = fs::absolute(flags.job_dir).lexically_normal();
  return EndInResult(dir, "out of memory", [&] {
    const fs::path file = dir / "spec.json";
    const convert::ConvertSpec spec =
        convert::ParseConvertSpec(engine::ReadWholeFile(file, kMaxSpecBytes), file.string());
    LowerPriority(0);
    const OpenJob job(dir);
    try {
      const convert::ConvertResult made = Run(spec, job.context(), flags.threads);
      nlohmann::ordered_json result = {{"status", "succeeded"}};
      result.update(nlohmann::ordered_json::parse(convert::ConvertResultJson(made)));
      WriteResult(dir, result);
      return 0;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) return kExitTryAgain;
      throw;
    }
  });
}

}  // namespace

void AddConvert(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ConvertFlags>();
  command.add_option(
      "source", flags->source,
      "a model: a Hugging Face directory, a checkpoint of ours or of MaxText (Orbax), a file of "
      "GGUF or llama2.c; or the directory of a PEFT adapter (with --base); which of them, its "
      "files say");
  command.add_option("target", flags->target, "directory or file that is made");
  command.add_option("--to", flags->spec.format, "format of the target: " + convert::FormatNames())
      ->capture_default_str();
  command.add_option("--base", flags->base,
                     "of an adapter: directory of the model into whose weights it is merged; with "
                     "--to peft: directory or GGUF file of the model that the source was tuned "
                     "from");
  command
      .add_option("--rank", flags->spec.peft.rank,
                  "of peft: rank of the adapter that is made of what the source differs by")
      ->check(CLI::Range(int64_t{1}, convert::kMostRank));
  command
      .add_option("--alpha", flags->spec.peft.alpha,
                  "of peft: lora_alpha, over rank the adapter's scale (default: as rank)")
      ->check(CLI::Range(convert::kLeastAlpha, convert::kMostAlpha));
  command.add_option(
      "--dtype", flags->spec.dtype,
      "f32, bf16 or f16 for all weights; q8_0 or q4_0 for the matrices of a GGUF file "
      "(default: as the model has them)");
  const auto scan = command.add_flag(
      "--scan", flags->scan, "all layers of a kind in one tensor, where the format has both");
  command.add_flag("--unroll", flags->unroll, "a tensor for each layer, where the format has both")
      ->excludes(scan);
  const auto shard_bytes =
      command
          .add_option("--shard-bytes", flags->shard_bytes,
                      "most bytes of one file of weights, in native formats (500M, 2G)")
          ->capture_default_str();
  command
      .add_option("--max-shard-mib", flags->max_shard_mib,
                  "the same in MiB, the older name of --shard-bytes")
      ->check(CLI::Range(1, 1 << 30))
      ->excludes(shard_bytes);
  command.add_flag("--ocdbt,!--no-ocdbt", flags->spec.maxtext.ocdbt,
                   "of maxtext: one database, or a directory for each array (default: --ocdbt)");
  command.add_option("--zarr", flags->spec.maxtext.zarr, "of maxtext: version of the arrays")
      ->check(CLI::IsMember({2, 3}))
      ->capture_default_str();
  command.add_option("--maxtext-model", flags->spec.maxtext.model,
                     "of maxtext: which form of Llama, by a name such as llama3-8b or llama3.1-8b "
                     "(default: that of llama3.1)");
  command.add_flag("--all-bf16", flags->spec.maxtext.all_bf16,
                   "of maxtext in bf16: bf16 also for norms, embeddings and queries that it "
                   "damages, which else are f32");
  command.add_flag("--overwrite", flags->spec.overwrite, "replace a model that is there already");
  command.add_flag("--verify,!--no-verify", flags->verify,
                   "read again and compare what was written (default; merged weights always are)");
  command.add_flag("--no-certificate", flags->no_certificate,
                   "do not run source and target and compare what they say; the record says so");
  command.add_option("--max-kl", flags->spec.max_kl,
                     "keep nothing that is farther from the source, at any position, than this KL "
                     "divergence (nats; 0: not at all)");
  command.add_option("--threads", flags->threads, "compute threads (0: one per physical core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.add_option("--job", flags->job_dir,
                     "job directory: reads spec.json there, writes events.jsonl and result.json, "
                     "and gives way to everything else");
  command.footer(
      "The target is made in TARGET.part and gets its name at the end. What a conversion that was "
      "killed,\n"
      "or that a full disk ended, left there, the same command goes on with; one that is stopped "
      "leaves\n"
      "nothing, but for --job, whose next start goes on.");
  command.callback([flags, &exit_code] {
    if (!flags->job_dir.empty()) {
      exit_code = ConvertJob(*flags);
      return;
    }
    if (flags->source.empty() || flags->target.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "convert: name SOURCE and TARGET, or --job DIR");
    }
    flags->spec.source = flags->source;
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
    exit_code = ConvertAndPrint(flags->spec, flags->threads);
  });
}

}  // namespace tandem::server
