#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/embedded_models.h"
#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/url.h"
#include "engine/io/posix_file.h"
#include "server/cli/data_dir.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/remote/local_server.h"
#include "server/cli/remote/remote_flags.h"
#include "server/cli/verbs.h"
#include "server/repl/repl.h"
#include "server/terminal/interrupts.h"
#include "server/terminal/terminal.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxInputBytes = size_t{32} << 20;

struct RunFlags {
  std::string first_word;          // the model, or with --model the prompt's first word
  std::vector<std::string> words;  // of the prompt
  std::string model;
  RemoteFlags remote;
  ModelFlags options;
  std::string system;
  std::string temperature;
  std::string max_tokens;
  std::string seed;
  std::string tools_file;
  bool thinks = false;
  bool thinks_not = false;
  ProgressFlags progress;
  bool has_statistics = false;
  bool has_no_history = false;
  std::string log_level = "warn";
};

// Standard input up to its end.
std::string ReadInput() {
  std::string text;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t n = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n == 0) return text;
    if (n < 0 && errno != EINTR) engine::ThrowSystemError("read", "standard input", errno);
    if (n > 0) text.append(buffer.data(), static_cast<size_t>(n));
    if (text.size() > kMaxInputBytes) {
      throw Error(ErrorCode::kInvalidArgument, "standard input has more than 32 MiB");
    }
  }
}

// The prompt of the command line, followed by standard input unless that is a terminal.
std::string PromptOf(const std::vector<std::string>& words) {
  std::string prompt;
  for (const std::string& word : words) prompt += (prompt.empty() ? "" : " ") + word;
  if (IsTerminal(STDIN_FILENO)) return prompt;
  std::string input = ReadInput();
  while (input.ends_with('\n')) input.pop_back();
  if (!prompt.empty() && !input.empty()) prompt += "\n\n";
  return prompt + input;
}

// A model of the server, and whether it only continues texts.
struct ChosenModel {
  std::string id;
  bool is_completion = false;
};

ChosenModel ChooseModel(const ServerClient& client, const std::string& wanted) {
  const Json list = client.Get("/v1/models");
  std::vector<std::string> ids;
  for (const Json& model : list.value("data", Json::array())) {
    const std::string id = model.is_object() ? model.value("id", "") : "";
    ids.push_back(id);
    if (id != wanted && !wanted.empty()) continue;
    // Other servers list no capabilities.
    const Json can = model.value("capabilities", Json());
    const bool can_chat = !can.is_array() || std::find(can.begin(), can.end(), "chat") != can.end();
    if (!wanted.empty() || list["data"].size() == 1) return {id, !can_chat};
  }
  // A checkpoint of a fine-tuning job is loaded when a request names it.
  if (wanted.starts_with("ft:")) return {wanted};
  std::string known;
  for (const std::string& id : ids) known += (known.empty() ? "" : ", ") + VisibleLine(id, 120);
  if (wanted.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                client.url() + " has several models: name one of " + known);
  }
  const std::string nearest = NearestWord(wanted, ids);
  throw Error(ErrorCode::kNotFound,
              client.url() + " has no model " + VisibleLine(wanted, 120) +
                  (nearest.empty() ? "; it has " + known
                                   : "; did you mean " + VisibleLine(nearest, 120) + "?"));
}

DialogState FirstDialog(const RunFlags& flags) {
  DialogState dialog;
  dialog.system = flags.system;
  const std::pair<const char*, const std::string*> given[] = {{"temperature", &flags.temperature},
                                                              {"max_tokens", &flags.max_tokens},
                                                              {"seed", &flags.seed}};
  for (const auto& [name, value] : given) {
    if (!value->empty()) dialog.settings.Set(name, *value);
  }
  if (flags.thinks || flags.thinks_not) dialog.settings.Set("think", flags.thinks ? "on" : "off");
  if (!flags.tools_file.empty()) dialog.LoadTools(flags.tools_file);
  return dialog;
}

int RunModel(RunFlags flags) {
  DialogState dialog = FirstDialog(flags);
  const bool is_remote = !flags.remote.url.empty();
  if (flags.model.empty()) {
    flags.model = flags.first_word;
  } else if (!flags.first_word.empty()) {
    flags.words.insert(flags.words.begin(), flags.first_word);
  }
  if (flags.model.empty() && !is_remote) flags.model = config::kDefaultModel;
  const bool is_interactive = flags.words.empty() && IsTerminal(STDIN_FILENO);
  const std::string prompt = is_interactive ? "" : PromptOf(flags.words);
  if (!is_interactive && prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is no prompt: give one after the model, or on standard input");
  }
  ConfigureLog(flags.log_level, LogFormat::kText);
  // Before the threads of the model, which must not take Ctrl-C.
  Interrupts interrupts;
  std::optional<LocalServer> local;
  std::optional<ServerClient> client;
  if (is_remote) {
    client.emplace(ClientOf(flags.remote));
  } else {
    const ShownProgress shown(flags.progress);
    const LocalModel model = FindLocalModel(flags.model, DataDirOr(flags.remote.data_dir));
    flags.model = model.id();
    local.emplace(model, flags.options);
    client.emplace(local->address());
  }
  const ChosenModel model = ChooseModel(*client, flags.model);
  if (dialog.settings.Has("think") && !flags.progress.quiet && !model.is_completion &&
      !HasThinkSwitch(*client, model.id)) {
    std::fprintf(stderr,
                 "tandem: the chat template of %s has no switch for thinking, so --think and "
                 "--no-think have no effect\n",
                 VisibleLine(model.id, 200).c_str());
  }
  ReplOptions options;
  options.model = model.id;
  options.is_completion = model.is_completion;
  options.is_json = flags.remote.is_json;
  options.has_statistics = !flags.progress.quiet &&
                           (flags.has_statistics || is_interactive || IsTerminal(STDOUT_FILENO));
  if (is_interactive && !flags.has_no_history) options.history_file = DefaultHistoryFile();
  Repl repl(*client, interrupts, std::move(options), std::move(dialog));
  if (is_interactive) {
    repl.Run();
  } else {
    repl.AnswerOnce(prompt);
  }
  return 0;
}

void AddRunFlags(CLI::App& command, const std::shared_ptr<RunFlags>& flags) {
  command.add_option("model", flags->first_word,
                     "a directory, a GGUF or llama2.c file, an embedded name, ORG/NAME at the hub, "
                     "an s3:// or gs:// URL, "
                     "the id of a finished job or the name of a fine-tuned model in the data "
                     "directory; with --url, a model of that server");
  command.add_option("prompt", flags->words, "text to answer; without one, a chat");
  command.add_option("--model,-m", flags->model,
                     "the model; with it, all other words are the prompt");
  RemoteFlags& remote = flags->remote;
  command.add_option("--url", remote.url, "answer with a model of this server, http or https")
      ->type_name("URL");
  command
      .add_option("--key-file", remote.key_file,
                  "file with a key of the server (or TANDEM_API_KEY)")
      ->type_name("FILE");
  command
      .add_option("--data-dir", remote.data_dir,
                  "data directory with the results of jobs, as for serve")
      ->type_name("DIR");
  command.add_flag("--json", remote.is_json,
                   "print one JSON object per answer: text, reasoning, tool calls, usage, timings");
  command.add_option("--system", flags->system, "system prompt");
  command.add_option("--temperature", flags->temperature, "0 to 2; 0 takes the likeliest token")
      ->type_name("FLOAT");
  command.add_option("--max-tokens", flags->max_tokens, "most tokens of an answer")
      ->type_name("INT");
  command.add_option("--seed", flags->seed, "the same seed gives the same answer")
      ->type_name("INT");
  auto* thinks = command.add_flag("--think", flags->thinks,
                                  "let the model think first, if its chat template has a switch");
  command.add_flag("--no-think", flags->thinks_not, "the opposite of --think")->excludes(thinks);
  command
      .add_option("--tools", flags->tools_file,
                  "JSON file with the `tools` of chat requests; calls are printed")
      ->type_name("FILE");
  command.add_flag("--stats", flags->has_statistics,
                   "print tokens and speed to standard error also if the output is no terminal");
  AddProgressFlags(command, flags->progress);
  command.add_flag("--no-history", flags->has_no_history, "do not read or write the history file");
  AddModelFlags(command, flags->options);
  command.add_option("--log-level", flags->log_level)->capture_default_str();
  const std::string usage =
      "Without a prompt on a terminal: a chat; /help lists its commands. Otherwise one answer:\n"
      "standard input follows the prompt, and standard output gets only the answer.\n"
      "--url answers with a model of a running server. Ctrl-C stops an answer (exit code 130).";
  command.footer(usage);
}

}  // namespace

void AddRun(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<RunFlags>();
  AddRunFlags(command, flags);
  command.callback([flags, &exit_code] { exit_code = RunModel(*flags); });
}

}  // namespace tandem::server
