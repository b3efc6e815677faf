#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/respond/answer_renderer.h"
#include "server/wire/responses/responses_tools.h"

namespace tandem::server {

// The parameters of a response besides the shape of its reply.
struct ResponsesShape {
  // The members of the response object that repeat the request.
  std::shared_ptr<const nlohmann::ordered_json> settings = nullptr;
  std::map<std::string, ResponsesTool> tools = {};  // by the name that the model sees
  // Keeps a final response object, then calls `done` once on any thread: whether it is kept. Unset:
  // the response is not stored. A response that could not be kept tells so with store: false.
  using Done = std::function<void(bool is_kept)>;
  std::function<void(const nlohmann::ordered_json& response, Done done)> keep = {};
  // Set: a response without a client. Gets its events in order, and its object whenever the status
  // changes. The last call of `on_status` follows the last event.
  std::function<void(std::string_view type, std::string data)> on_event = {};
  std::function<void(const nlohmann::ordered_json& response)> on_status = {};
};

// The response object before the answer: status queued, without output.
nlohmann::ordered_json ResponsesHead(const ReplyShape& shape,
                                     const nlohmann::ordered_json& settings);

// Writes the answer of POST /v1/responses: one response object, or the events of a stream.
class ResponsesRenderer final : public AnswerRenderer {
 public:
  ResponsesRenderer(ReplyShape shape, ResponsesShape response, ResponseWriter writer);
  ~ResponsesRenderer() override;

  bool has_pings() const override;
  void SendPing() override;

  // Ends the response as cancelled, unless it has ended. Answer thread.
  std::function<void()> MakeCancel() const;

 private:
  struct State;

  void OnBegin() override;
  void OnPart(const engine::AnswerEvent& part) override;
  void OnDeltaEnd() override;
  void OnEnd(const AnswerEnd& end) override;
  void OnFailure(const ErrorReply& reply) override;

  // TakeLogprobs in the form of this API: the bytes of a token without text are [], not null.
  std::string TakeEntries();

  const std::shared_ptr<State> state_;
};

}  // namespace tandem::server
