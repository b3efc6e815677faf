#include "server/repl/repl.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "server/repl/repl_command.h"
#include "server/terminal/terminal.h"
#include "server/terminal/terminal_mode.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPrompt = ">>> ";
constexpr const char* kContinuation = "... ";
constexpr std::string_view kBlockMark = "\"\"\"";
// Without a limit of its own a text model would go on to the end of its context.
constexpr int64_t kCompletionTokens = 256;

void WriteAnswer(std::string_view bytes) {
  const bool is_written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() &&
                          std::fflush(stdout) == 0;
  if (!is_written) throw Error(ErrorCode::kIo, "could not write the answer to standard output");
}

AnswerTarget TargetOfAnswers() { return {IsTerminal(STDOUT_FILENO), UseColour(STDOUT_FILENO)}; }

// Prompts go to the terminal, also if standard output is a file.
int PromptOutput() { return IsTerminal(STDERR_FILENO) ? STDERR_FILENO : STDOUT_FILENO; }

}  // namespace

Repl::Repl(const ServerClient& client, Interrupts& interrupts, ReplOptions options,
           DialogState dialog)
    : client_(client),
      interrupts_(interrupts),
      options_(std::move(options)),
      dialog_(std::move(dialog)),
      history_(options_.history_file),
      reader_(STDIN_FILENO, PromptOutput(), history_, CompleteReplCommand) {}

void Repl::Say(const std::string& text) const {
  std::fflush(stdout);
  std::fputs((text + "\n").c_str(), stderr);
}

void Repl::SayDim(const std::string& text) const {
  Say(Styled(kDim, text, UseColour(STDERR_FILENO)));
}

void Repl::AnswerOnce(const std::string& prompt) {
  dialog_.Add({"user", prompt});
  const ModelAnswer answer =
      Ask(options_.is_completion ? CompletionRequest(prompt) : dialog_.RequestJson(options_.model));
  if (answer.fault) throw Error(*answer.fault);
  if (answer.is_stopped) throw Error(ErrorCode::kCancelled, "stopped");
}

void Repl::Run() {
  if (!history_.fault().empty()) Say("no history: " + VisibleLine(history_.fault()));
  const std::string model = VisibleLine(options_.model, 200);
  SayDim(options_.is_completion ? model + " has no chat template: it continues your text"
                                : model + ": /help lists the commands, Ctrl-D leaves");
  while (const std::optional<Entry> entry = ReadEntry()) {
    const std::string& text = entry->text;
    if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
    const auto error = ErrorOf([&] {
      if (IsReplCommand(text) && !entry->is_block) {
        is_left_ = Obey(text) == Next::kLeave;
      } else {
        AnswerTo(text);
      }
    });
    if (error) Say(Styled(kRed, "error: ", UseColour(STDERR_FILENO)) + VisibleText(error->what()));
    if (is_left_) return;
  }
}

// A line, several lines with a backslash at their ends, or a block between triple quotes. Nullopt
// at the end of the input.
std::optional<Repl::Entry> Repl::ReadEntry() {
  std::string text;
  bool is_block = false;
  bool is_first = true;
  for (;;) {
    const auto line = reader_.Read(is_first ? kPrompt : kContinuation, kContinuation);
    if (!line) {
      if (is_first) return std::nullopt;
      break;  // Ctrl-D ends a block too
    }
    if (line->is_interrupted) {
      if (is_first && line->text.empty()) SayDim("(Ctrl-D or /exit leaves)");
      return Entry{};
    }
    std::string_view piece = line->text;
    if (is_first && piece.starts_with(kBlockMark)) {
      is_block = true;
      piece.remove_prefix(kBlockMark.size());
    }
    is_first = false;
    if (is_block && piece.ends_with(kBlockMark)) {
      piece.remove_suffix(kBlockMark.size());
      text += piece;
      break;
    }
    if (!is_block && !piece.ends_with('\\')) {
      text += piece;
      break;
    }
    if (!is_block) piece.remove_suffix(1);
    text += piece;
    text += '\n';
  }
  history_.Add(text);
  return Entry{std::move(text), is_block};
}

Repl::Next Repl::Obey(const std::string& line) {
  const ReplCommand command = ParseReplCommand(line);
  using Kind = ReplCommand::Kind;
  switch (command.kind) {
    case Kind::kHelp:
      Say(ReplHelp());
      break;
    case Kind::kSystem:
      SetSystem(command.argument);
      break;
    case Kind::kSet:
      Set(command.argument);
      break;
    case Kind::kShow:
      Show();
      break;
    case Kind::kSave:
      dialog_.Save(command.argument, options_.model);
      SayDim("saved to " + VisibleLine(command.argument));
      break;
    case Kind::kLoad:
      dialog_.Load(command.argument);
      SayDim("loaded " + std::to_string(dialog_.messages().size()) + " messages");
      break;
    case Kind::kRegenerate:
      Regenerate();
      break;
    case Kind::kUndo:
      SayDim(dialog_.DropTurn() ? "removed the last question" : "there is nothing to undo");
      break;
    case Kind::kClear:
      dialog_.Clear();
      SayDim("removed all messages");
      break;
    case Kind::kTokens:
      ShowTokens(command.argument);
      break;
    case Kind::kRender:
      ShowRendered();
      break;
    case Kind::kExit:
      return Next::kLeave;
  }
  return Next::kGoOn;
}

void Repl::AnswerTo(const std::string& text) {
  n_again_ = 0;
  if (options_.is_completion) {
    dialog_.Clear();
    dialog_.Add({"user", text});
    const ModelAnswer answer = Ask(CompletionRequest(text));
    if (answer.fault) throw Error(*answer.fault);
    return;
  }
  dialog_.Add({"user", text});
  const ModelAnswer answer = Ask(dialog_.RequestJson(options_.model));
  // Without any answer the question would make the next one fail too.
  if (answer.is_empty() && (answer.fault || answer.is_stopped)) dialog_.DropTurn();
  if (answer.fault) throw Error(*answer.fault);
}

std::string Repl::CompletionRequest(const std::string& prompt) const {
  Json request = Json::parse(dialog_.RequestJson(options_.model));
  request.erase("messages");
  request.erase("chat_template_kwargs");
  request["prompt"] = dialog_.system.empty() ? prompt : dialog_.system + prompt;
  if (!request.contains("max_tokens")) request["max_tokens"] = kCompletionTokens;
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ModelAnswer Repl::Ask(const std::string& request) {
  AnswerPrinter printer(TargetOfAnswers(), WriteAnswer);
  AnswerSink sink;
  if (options_.is_json) {
    sink.on_text = sink.on_reasoning = [](std::string_view) {};
  } else {
    sink.on_text = [&](std::string_view piece) { printer.Text(piece); };
    sink.on_reasoning = [&](std::string_view piece) { printer.Reasoning(piece); };
  }
  ModelAnswer answer;
  {
    const TerminalMode mode(STDIN_FILENO, STDERR_FILENO, TerminalMode::Kind::kAnswering);
    const Interrupts::Work work(interrupts_);
    answer = AskModel(client_, request, options_.is_completion, sink, work.token());
  }
  printer.End();
  if (options_.is_json) WriteAnswer(answer.ToJson(options_.model) + "\n");
  if (!options_.is_json && !answer.tool_calls.empty()) {
    for (const Json& call : Json::parse(answer.tool_calls)) {
      const Json& function = call["function"];
      WriteAnswer(VisibleLine(function["name"].get<std::string>()) + "(" +
                  VisibleLine(function["arguments"].get<std::string>()) + ")\n");
    }
  }
  if (!answer.is_empty()) {
    dialog_.Add({"assistant", answer.text, answer.reasoning, answer.tool_calls});
  }
  if (options_.has_statistics && !answer.fault) ShowStatistics(answer);
  return answer;
}

void Repl::ShowStatistics(const ModelAnswer& answer) const {
  std::string text = answer.Statistics();
  if (answer.finish_reason == "length") text += "; cut: no more tokens were allowed";
  if (answer.is_stopped) text += "; stopped";
  SayDim("[" + text + "]");
}

void Repl::SetSystem(const std::string& text) {
  if (text.empty()) {
    Say(dialog_.system.empty() ? "there is no system prompt" : VisibleText(dialog_.system));
    return;
  }
  dialog_.system = text == "off" ? "" : text;
  SayDim(text == "off" ? "removed the system prompt" : "set the system prompt");
}

void Repl::Set(const std::string& argument) {
  if (argument.empty()) {
    std::string text = ChatSettings::Help();
    for (const auto& [name, value] : dialog_.settings.values()) {
      text += "set: " + name + " = " + VisibleLine(value) + "\n";
    }
    text.pop_back();
    return Say(text);
  }
  const size_t space = argument.find_first_of(" \t");
  const std::string name = argument.substr(0, space);
  if (space == std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument, "use it as /set " + VisibleLine(name, 60) + " VALUE");
  }
  const std::string value = argument.substr(argument.find_first_not_of(" \t", space));
  dialog_.settings.Set(name, value);
  SayDim(name + " = " + VisibleLine(value));
  if (name == "think" && value != "default" && !HasThinkSwitch(client_, options_.model)) {
    SayDim("the chat template has no such switch, so this has no effect");
  }
}

void Repl::Show() const {
  std::string text = "model: " + VisibleLine(options_.model) + " at " + client_.url() + "\n";
  text += "system: " + (dialog_.system.empty() ? "none" : VisibleLine(dialog_.system, 500)) + "\n";
  for (const auto& [name, value] : dialog_.settings.values()) {
    text += name + ": " + VisibleLine(value) + "\n";
  }
  text += "messages: " + std::to_string(dialog_.messages().size());
  for (const SpokenMessage& message : dialog_.messages()) {
    text += "\n  " + message.role + ": " + VisibleLine(message.content, 100);
  }
  Say(text);
}

void Repl::Regenerate() {
  const DialogState before = dialog_;
  const std::optional<std::string> question = dialog_.DropAnswer();
  if (!question) throw Error(ErrorCode::kFailedPrecondition, "there is no answer to replace");
  Json request = options_.is_completion ? Json::parse(CompletionRequest(*question))
                                        : Json::parse(dialog_.RequestJson(options_.model));
  // A fixed seed would give the same answer again.
  ++n_again_;
  if (request.contains("seed")) request["seed"] = request["seed"].get<int64_t>() + n_again_;
  const ModelAnswer answer = Ask(request.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (answer.is_empty() && (answer.fault || answer.is_stopped)) dialog_ = before;
  if (answer.fault) throw Error(*answer.fault);
}

void Repl::ShowTokens(const std::string& text) {
  const Interrupts::Work work(interrupts_);
  Json body = {{"model", options_.model}};
  if (!text.empty()) {
    body["prompt"] = text;
    body["return_token_strs"] = true;
  } else if (dialog_.messages().empty()) {
    return Say("there are no messages yet");
  } else {
    body["messages"] = Json::parse(dialog_.MessagesJson());
  }
  const Json reply = client_.Post("/tokenize", body, work.token());
  std::string out;
  if (const auto pieces = reply.find("token_strs"); pieces != reply.end() && pieces->is_array()) {
    for (const Json& piece : *pieces) {
      out += (out.empty() ? "" : " ") +
             ("[" + VisibleLine(piece.is_string() ? piece.get<std::string>() : "") + "]");
    }
    out += "\n";
  }
  Say(out + reply.value("count", Json()).dump() + " tokens of " +
      reply.value("max_model_len", Json()).dump());
}

void Repl::ShowRendered() {
  if (dialog_.messages().empty()) return Say("there are no messages yet");
  const Interrupts::Work work(interrupts_);
  Json body = {{"model", options_.model}};
  const Json request = Json::parse(dialog_.RequestJson(options_.model));
  for (const char* name : {"messages", "chat_template_kwargs"}) {
    if (request.contains(name)) body[name] = request[name];
  }
  const Json reply = client_.Post("/v1/render", body, work.token());
  const auto text = reply.find("text");
  if (text == reply.end() || !text->is_string()) {
    throw Error(ErrorCode::kDataLoss, client_.url() + " rendered no text");
  }
  Say(VisibleText(text->get<std::string>()));
  SayDim("[" + reply.value("count", Json()).dump() + " tokens]");
}

bool HasThinkSwitch(const ServerClient& client, const std::string& model) {
  const auto rendered = [&](bool thinks) {
    const Json message = {{"role", "user"}, {"content", "Hello"}};
    return client
        .Post("/v1/render", {{"model", model},
                             {"messages", Json::array({message})},
                             {"chat_template_kwargs", {{"enable_thinking", thinks}}}})
        .value("text", Json());
  };
  return rendered(true) != rendered(false);
}

}  // namespace tandem::server
