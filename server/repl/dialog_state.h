#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "server/repl/chat_settings.h"

namespace tandem::server {

// A message of a chat, with the names of chat requests.
struct SpokenMessage {
  std::string role;
  std::string content;
  std::string reasoning = {};   // of an assistant; empty: none
  std::string tool_calls = {};  // of an assistant: a JSON array; empty: none
};

// A chat of a user with a model, and how the model answers. One thread.
class DialogState {
 public:
  std::string system;  // empty: none
  ChatSettings settings;

  const std::vector<SpokenMessage>& messages() const { return messages_; }
  void Add(SpokenMessage message) { messages_.push_back(std::move(message)); }
  void Clear() { messages_.clear(); }
  // Removes the last answer and returns the question before it, which stays. Nullopt without one.
  std::optional<std::string> DropAnswer();
  // Removes the last question with its answer. Returns false if there is none.
  bool DropTurn();

  // Reads the `tools` of chat requests from a JSON file. Throws as Load.
  void LoadTools(const std::filesystem::path& file);

  // The messages, the system prompt first, as a JSON array.
  std::string MessagesJson() const;
  // A chat request to the model, without streaming.
  std::string RequestJson(const std::string& model) const;

  // Writes a JSON object with model, settings and messages; to a file that ends in .jsonl, appends
  // the messages as one line of training data. Throws kIo.
  void Save(const std::filesystem::path& file, const std::string& model) const;
  // Replaces everything by what Save wrote. Changes nothing if it throws: kNotFound, kIo, or
  // kInvalidArgument that names the faulty part of the file.
  void Load(const std::filesystem::path& file);

 private:
  std::vector<SpokenMessage> messages_;
  std::string tools_;  // a JSON array; empty: none
};

}  // namespace tandem::server
