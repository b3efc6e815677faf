#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/answers/answer_events.h"
#include "server/respond/reply_json.h"
#include "server/wire/responses/responses_tools.h"

namespace tandem::server {

// The output of one response: turns the parts of the answer into items, and reports the events of
// the Responses API. One thread at a time.
//
// At most one item is open. Its events are: output_item.added, content_part.added, deltas, the
// `done` of the text or arguments, content_part.done, output_item.done. Calls have no content part.
// Sequence numbers count from 0 without gaps. An item's id follows from the response's id and the
// item's index.
//
// A call that begins and turns out not to be one (CallDropped) has been announced already. Its item
// ends with status incomplete, and the model's text of the call follows as message text. Without
// events no client has seen the item, so it is removed.
class ResponsesOutput {
 public:
  // `data` is the JSON of one event.
  using Emit = std::function<void(std::string_view type, std::string data)>;

  // `head` is the response object without output and usage. Unset `emit`: no events.
  ResponsesOutput(nlohmann::ordered_json head, std::map<std::string, ResponsesTool> tools,
                  Emit emit);
  ~ResponsesOutput();
  ResponsesOutput(const ResponsesOutput&) = delete;
  ResponsesOutput& operator=(const ResponsesOutput&) = delete;

  // Emits response.created and response.in_progress.
  void Begin();
  // `logprobs`: those of a TextPart, as JSON objects with commas between.
  void Add(const engine::AnswerEvent& part, std::string_view logprobs = {});
  // Log-probabilities of tokens without text; only while a message is open.
  void AddLogprobs(std::string_view logprobs);
  // Ends the open item, if any.
  void Close(bool is_complete);
  // Emits `keepalive`.
  void Ping();

  // How a response ends; kCancelled is for background responses.
  enum class Status { kCompleted, kIncomplete, kFailed, kCancelled };
  // Closes the open item and returns the final response object. A completed response has at least
  // one message or call. `error`: of kFailed.
  nlohmann::ordered_json Finish(Status status, const ReplyUsage& usage,
                                std::string_view error = {});
  // Emits the last event with the object from Finish: response.completed, .incomplete (also for
  // kCancelled) or .failed.
  void End(const nlohmann::ordered_json& response);

  // The response object before the answer: in progress, without output.
  const nlohmann::ordered_json& head() const { return *head_; }
  bool has_open_text() const { return open_ == Open::kText; }

 private:
  enum class Open { kNone, kReasoning, kText, kCall };

  void Show(const engine::ReasoningPart& part, std::string_view logprobs);
  void Show(const engine::TextPart& part, std::string_view logprobs);
  void Show(const engine::CallBegin& part, std::string_view logprobs);
  void Show(const engine::CallArguments& part, std::string_view logprobs);
  void Show(const engine::CallEnd& part, std::string_view logprobs);
  void Show(const engine::CallDropped& part, std::string_view logprobs);
  void Show(const engine::AnswerFinish&, std::string_view) {}

  void OpenContent(Open kind);
  void OpenItem(Open kind, nlohmann::ordered_json item);
  void SendDelta(std::string_view event, std::string_view delta, std::string_view logprobs,
                 bool has_logprobs);
  void CloseContent();
  void CloseCall();
  nlohmann::ordered_json Part(const std::string& text, const std::string& logprobs) const;

  // Begins the JSON of an event: type, sequence_number.
  std::string BeginEvent(std::string_view type);
  // ... item_id, output_index and, for contents, content_index.
  std::string BeginItemEvent(std::string_view type);
  void Send(std::string_view type, std::string data);
  void SendResponse(std::string_view type, const nlohmann::ordered_json& response);
  void SendItem(std::string_view type, const nlohmann::ordered_json& item);

  const std::unique_ptr<nlohmann::ordered_json> head_;
  const std::map<std::string, ResponsesTool> tools_;
  const Emit emit_;
  const std::string stem_;  // of the items' ids
  int64_t sequence_number_ = 0;
  std::vector<nlohmann::ordered_json> items_;  // the last one is open unless open_ is kNone
  Open open_ = Open::kNone;
  bool is_custom_ = false;  // of the open call
  std::string id_;          // of the open item
  std::string text_;        // of the open item: content, arguments or input
  std::string logprobs_;    // of the open message
};

// The events of a response that has ended, as its stream would have had them with one delta for
// each text. `response` is an object from Finish.
std::vector<std::pair<std::string, std::string>> ReplayOf(const nlohmann::ordered_json& response);

}  // namespace tandem::server
