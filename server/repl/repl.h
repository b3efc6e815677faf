#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "server/client/server_client.h"
#include "server/repl/answer_printer.h"
#include "server/repl/ask_model.h"
#include "server/repl/dialog_state.h"
#include "server/terminal/interrupts.h"
#include "server/terminal/line_reader.h"

namespace tandem::server {

struct ReplOptions {
  std::string model;                   // id at the server
  bool is_completion = false;          // the model has no chat template: it continues texts
  bool is_json = false;                // answers are JSON objects, one per line
  bool has_statistics = true;          // tokens and speed after each answer
  std::filesystem::path history_file;  // empty: the history ends with the process
};

// A chat in a terminal. Answers go to standard output, everything else to standard error. One
// thread.
class Repl {
 public:
  // The client and the interrupts must outlive it.
  Repl(const ServerClient& client, Interrupts& interrupts, ReplOptions options, DialogState dialog);

  // Answers one prompt. Throws the fault of an answer that broke off, and kCancelled after Ctrl-C,
  // when the part so far has been written.
  void AnswerOnce(const std::string& prompt);

  // Reads and answers lines until the user leaves.
  void Run();

 private:
  enum class Next { kGoOn, kLeave };
  struct Entry {
    std::string text;
    bool is_block = false;  // between triple quotes: never a command
  };
  std::optional<Entry> ReadEntry();
  Next Obey(const std::string& line);
  void AnswerTo(const std::string& text);
  // Asks for an answer to the last message and adds it.
  ModelAnswer Ask(const std::string& request);
  std::string CompletionRequest(const std::string& prompt) const;
  void SetSystem(const std::string& text);
  void Set(const std::string& argument);
  void Show() const;
  void Regenerate();
  void ShowTokens(const std::string& text);
  void ShowRendered();
  void ShowStatistics(const ModelAnswer& answer) const;
  // Writes to standard error.
  void Say(const std::string& text) const;
  void SayDim(const std::string& text) const;

  const ServerClient& client_;
  Interrupts& interrupts_;
  const ReplOptions options_;
  DialogState dialog_;
  LineHistory history_;
  LineReader reader_;
  int64_t n_again_ = 0;  // answers to the present question before this one
  bool is_left_ = false;
};

// Whether the chat template of the model reads `enable_thinking`.
bool HasThinkSwitch(const ServerClient& client, const std::string& model);

}  // namespace tandem::server
