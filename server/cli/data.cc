#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/thread_pool.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/spec_paths.h"
#include "server/cli/verbs.h"
#include "training/setup/data_view.h"
#include "training/setup/open_data.h"

namespace tandem::server {
namespace {

constexpr int kExitBadData = 65;

struct DataFlags {
  std::string spec;
  std::vector<std::string> overrides;
  bool eval = false;
  int64_t index = 0;
  bool tokens = false;
  std::string out;
  ProgressFlags progress;
};

training::TrainSpec ReadSpec(const DataFlags& flags) {
  training::TrainSpec spec = training::LoadTrainSpec(flags.spec, flags.overrides);
  FindSpecPaths(spec);
  if (flags.eval && spec.data.eval.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "data.eval is not set, and --eval needs it: add data.eval=FILE");
  }
  return spec;
}

// Sends the log to standard error, because standard output is for results.
ProgressFlags Foreground(const DataFlags& flags) {
  ConfigureLog("info", LogFormat::kText);
  return flags.progress;
}

// A spec's data, opened as a run opens it, but skipping bad rows.
struct Opened {
  explicit Opened(const DataFlags& flags, bool keep_lengths = false)
      : shown(Foreground(flags)),
        spec(ReadSpec(flags)),
        pool(static_cast<int>(spec.resources.threads)),
        files(training::LoadModelFiles(spec)) {
    on_bad_row = spec.data.on_bad_row;
    spec.data.on_bad_row = training::OnBadRow::kSkip;
    const auto split = flags.eval ? training::DataSplit::kEval : training::DataSplit::kTrain;
    path = flags.eval ? spec.data.eval.string() : spec.data.train.string();
    data = OpenData(spec, files, pool, {.split = split, .keep_lengths = keep_lengths});
  }

  ShownProgress shown;
  training::TrainSpec spec;
  ThreadPool pool;
  training::ModelFiles files;
  training::OnBadRow on_bad_row = training::OnBadRow::kError;
  std::string path;
  training::OpenedData data;
};

void Print(const std::string& text) { std::printf("%s\n", text.c_str()); }

void PrintSplitRows(const training::OpenedData& data) {
  const std::string notice = SplitRowsNotice(data);
  if (!notice.empty()) Print("note: " + notice);
}

int Check(const DataFlags& flags) {
  const Opened opened(flags);
  Print(opened.path + ": " + Summary(opened.spec, opened.data));
  PrintSplitRows(opened.data);
  const training::DataReport& report = opened.data.report;
  if (report.bad_rows == 0) return 0;
  Print(report.BadRows(opened.path));
  return opened.on_bad_row == training::OnBadRow::kSkip ? 0 : kExitBadData;
}

int Show(const DataFlags& flags) {
  const Opened opened(flags);
  const training::SampleSource& source = *opened.data.source;
  if (flags.index < 0 || flags.index >= source.size()) {
    throw Error(ErrorCode::kInvalidArgument, "--index must be in [0, " +
                                                 std::to_string(source.size() - 1) + "], got " +
                                                 std::to_string(flags.index));
  }
  const training::Sample sample = source.Make(flags.index);
  PrintSplitRows(opened.data);
  Print("sample " + std::to_string(flags.index) + " (" + source.Where(flags.index) +
        "): " + std::to_string(sample.tokens.size()) + " tokens, " +
        std::to_string(TrainedTokens(sample)) + " trained");
  if (flags.tokens) {
    std::fputs(TokenTable(*opened.files.tokenizer, sample).c_str(), stdout);
    return 0;
  }
  const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  Print(MarkedText(
      *opened.files.tokenizer, sample,
      is_terminal ? training::Marks{"\x1b[1;32m", "\x1b[0m"} : training::Marks{"[[", "]]"}));
  return 0;
}

int Stats(const DataFlags& flags) {
  const Opened opened(flags, /*keep_lengths=*/true);
  std::fputs(Statistics(opened.spec, opened.data, opened.path).c_str(), stdout);
  return 0;
}

int Prepare(const DataFlags& flags) {
  const ShownProgress shown(Foreground(flags));
  training::TrainSpec spec = ReadSpec(flags);
  const training::ModelFiles files = training::LoadModelFiles(spec);
  ThreadPool pool(static_cast<int>(spec.resources.threads));
  const auto split = flags.eval ? training::DataSplit::kEval : training::DataSplit::kTrain;
  const training::PreparedData prepared = PrepareData(spec, files, pool, split, flags.out);
  Print(flags.out + ": " + std::to_string(prepared.samples) + " samples, " +
        std::to_string(prepared.tokens) + " tokens, " + std::to_string(prepared.bytes) + " bytes");
  Print("train with data.train=" + flags.out + "; leave the rest of the spec unchanged");
  return 0;
}

CLI::App* AddAction(CLI::App& command, const char* name, const char* description,
                    const std::shared_ptr<DataFlags>& flags) {
  CLI::App* const action = command.add_subcommand(name, description);
  action->add_option("spec", flags->spec, "training spec (YAML or JSON)")->required();
  action->add_option("overrides", flags->overrides, "key=value words that override the spec");
  AddProgressFlags(*action, flags->progress);
  action->add_flag("--eval", flags->eval, "use data.eval instead of data.train");
  return action;
}

}  // namespace

void AddData(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<DataFlags>();
  command.require_subcommand(1);
  AddAction(command, "check",
            "read, render and tokenise all samples; list the bad ones (exit code 65)", flags)
      ->callback([flags, &exit_code] { exit_code = Check(*flags); });

  CLI::App* const show =
      AddAction(command, "show", "print a sample and mark the trained tokens", flags);
  show->add_option("--index", flags->index, "index of the sample, from 0");
  show->add_flag("--tokens", flags->tokens, "print one line per token instead of the text");
  show->callback([flags, &exit_code] { exit_code = Show(*flags); });

  AddAction(command, "stats", "print lengths, shares and duplicates", flags)
      ->callback([flags, &exit_code] { exit_code = Stats(*flags); });

  CLI::App* const prepare =
      AddAction(command, "prepare", "write the tokens to a file for data.train", flags);
  prepare->add_option("--out", flags->out, "file to write, NAME.tok")->required();
  prepare->callback([flags, &exit_code] { exit_code = Prepare(*flags); });
}

}  // namespace tandem::server
