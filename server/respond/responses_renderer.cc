#include "server/respond/responses_renderer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "server/respond/error_response.h"
#include "server/respond/responses_output.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using Status = ResponsesOutput::Status;

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Json ResponsesHead(const ReplyShape& shape, const Json& settings) {
  Json head = {{"id", shape.id},
               {"object", "response"},
               {"created_at", shape.created},
               {"status", "queued"},
               {"completed_at", nullptr},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"model", shape.model},
               {"output", Json::array()}};
  for (const auto& [name, value] : settings.items()) head[name] = value;
  head["usage"] = nullptr;
  if (shape.return_token_ids) head["prompt_token_ids"] = shape.prompts.front().ids;
  return head;
}

// Outlives the renderer while the final response is being kept.
struct ResponsesRenderer::State : std::enable_shared_from_this<State> {
  State(Json head, ResponsesShape the_response, ResponseWriter the_writer, bool the_streams)
      : response(std::move(the_response)),
        writer(std::move(the_writer)),
        streams(the_streams && !response.on_event),
        output(std::move(head), std::move(response.tools), Emitter()) {}

  // The events' receiver; unset without one.
  ResponsesOutput::Emit Emitter() {
    if (response.on_event) return response.on_event;
    if (!streams) return nullptr;
    return [this](std::string_view type, std::string data) { stream->SendNamed(type, data); };
  }

  // Keeps the final object, then sends it. Later parts and ends are ignored.
  void Finish(Json final) {
    is_over = true;
    if (!response.keep) return Send(final);
    // The response is kept before the client knows of its end, so that its next request finds it.
    const auto kept = std::make_shared<Json>(std::move(final));
    response.keep(*kept, [self = shared_from_this(), kept](bool is_kept) {
      self->writer.Post([self, kept, is_kept] {
        if (!is_kept) (*kept)["store"] = false;
        self->Send(*kept);
      });
    });
  }

  void Send(const Json& final) {
    if (response.on_event || streams) output.End(final);
    if (response.on_status) response.on_status(final);
    if (streams) {
      stream->Close();
    } else {
      writer.Json(200, response.on_event ? "{}" : Dump(final));
    }
  }

  ResponsesShape response;
  const ResponseWriter writer;
  const bool streams;
  std::optional<EventStream> stream;
  ResponsesOutput output;
  ReplyUsage usage;
  bool has_begun = false;
  bool is_over = false;
};

ResponsesRenderer::ResponsesRenderer(ReplyShape the_shape, ResponsesShape response,
                                     ResponseWriter the_writer)
    : AnswerRenderer(std::move(the_shape), std::move(the_writer)),
      state_(std::make_shared<State>(ResponsesHead(shape(), *response.settings),
                                     std::move(response), writer(), shape().stream)) {
  state_->usage = usage();
}

ResponsesRenderer::~ResponsesRenderer() = default;

bool ResponsesRenderer::has_pings() const { return state_->streams; }

void ResponsesRenderer::SendPing() {
  if (state_->has_begun && !state_->is_over) state_->output.Ping();
}

std::function<void()> ResponsesRenderer::MakeCancel() const {
  return [weak = std::weak_ptr<State>(state_)] {
    const std::shared_ptr<State> state = weak.lock();
    if (!state || state->is_over) return;
    if (!state->has_begun) state->output.Begin();
    state->Finish(state->output.Finish(Status::kCancelled, state->usage));
  };
}

void ResponsesRenderer::OnBegin() {
  if (state_->is_over) return;
  state_->has_begun = true;
  if (state_->streams) state_->stream = StartStream();
  state_->output.Begin();
  if (state_->response.on_status) state_->response.on_status(state_->output.head());
}

void ResponsesRenderer::OnPart(const engine::AnswerEvent& part) {
  if (state_->is_over) return;
  std::string logprobs;
  const bool has_text = std::holds_alternative<engine::TextPart>(part) ||
                        std::holds_alternative<engine::CallDropped>(part);
  if (has_text) logprobs = TakeEntries();
  state_->output.Add(part, logprobs);
}

std::string ResponsesRenderer::TakeEntries() {
  constexpr std::string_view kNull = R"("bytes":null)";
  std::string entries = TakeLogprobs();
  // Within a string the quotes would be escaped.
  for (size_t at = entries.find(kNull); at != std::string::npos; at = entries.find(kNull, at)) {
    entries.replace(at, kNull.size(), R"("bytes":[])");
  }
  return entries;
}

void ResponsesRenderer::OnDeltaEnd() {
  state_->usage = usage();
  // Tokens of thoughts and calls have no entries.
  if (!state_->output.has_open_text()) TakeLogprobs();
}

void ResponsesRenderer::OnEnd(const AnswerEnd& end) {
  if (state_->is_over) return;
  state_->usage = usage();
  state_->output.AddLogprobs(TakeEntries());
  const bool was_cut = end.reason == engine::ChoiceFinished::Reason::kLength;
  Json final = state_->output.Finish(was_cut ? Status::kIncomplete : Status::kCompleted, usage());
  if (shape().return_token_ids) final["token_ids"] = token_ids();
  state_->Finish(std::move(final));
}

void ResponsesRenderer::OnFailure(const ErrorReply& reply) {
  if (state_->is_over) return;
  const bool is_plain = !state_->response.on_event && !(state_->streams && state_->has_begun);
  if (is_plain) {
    state_->is_over = true;
    writer().Send(ToResponse(reply));
    return;
  }
  if (!state_->has_begun) state_->output.Begin();
  const std::string message = Json::parse(reply.body)["error"]["message"];
  state_->Finish(state_->output.Finish(Status::kFailed, usage(), message));
}

}  // namespace tandem::server
