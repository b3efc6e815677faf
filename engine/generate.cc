#include "engine/generate.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/base/out_of_memory.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {
namespace {

// Carries one request's events from the engine thread to the thread that waits in Generate.
class EventQueue {
 public:
  void Post(GenerationEvent event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_one();
  }
  // No event follows.
  void Close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_one();
  }
  // Waits for events and takes all of them. Empty: the queue is closed.
  std::vector<GenerationEvent> Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_closed_ || !events_.empty(); });
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;  // guards the other members
  std::condition_variable changed_;
  std::vector<GenerationEvent> events_;
  bool is_closed_ = false;
};

// Closes the queue with the sink. An engine without memory for the last event destroys the sink.
EventSink SinkInto(const std::shared_ptr<EventQueue>& queue) {
  const std::shared_ptr<EventQueue> writer(queue.get(), [queue](EventQueue*) { queue->Close(); });
  return [writer](RequestId, GenerationEvent event) { writer->Post(std::move(event)); };
}

// Cancels a request unless it has ended. Without memory for the command, the request runs to its
// end.
class CancelAtExit {
 public:
  CancelAtExit(Engine& engine, RequestId request) : engine_(engine), request_(request) {}
  ~CancelAtExit() {
    if (!has_ended_) HasMemoryFor([&] { engine_.Cancel(request_); });
  }
  CancelAtExit(const CancelAtExit&) = delete;
  CancelAtExit& operator=(const CancelAtExit&) = delete;

  void set_ended() { has_ended_ = true; }

 private:
  Engine& engine_;
  const RequestId request_;
  bool has_ended_ = false;
};

void ThrowUnlessCompleted(const RequestFinished& end) {
  switch (end.outcome) {
    case RequestFinished::Outcome::kCompleted:
      return;
    case RequestFinished::Outcome::kCancelled:
      throw Error(ErrorCode::kCancelled, "the request was cancelled");
    case RequestFinished::Outcome::kFailed:
      throw Error(end.code, end.message).WithReason(end.reason);
  }
}

}  // namespace

std::vector<TokenId> EncodePrompt(const LoadedModel& model, std::string_view text,
                                  bool add_special_tokens, SpecialTokens special) {
  if (!model.tokenizer) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the model has no tokenizer: give its prompts as token ids");
  }
  std::vector<TokenId> ids;
  if (add_special_tokens && model.add_bos && model.bos) ids.push_back(*model.bos);
  if (text.empty()) return ids;
  const std::vector<TokenId> of_text = model.tokenizer->Encode(text, special);
  ids.insert(ids.end(), of_text.begin(), of_text.end());
  return ids;
}

std::vector<ChoiceFinished> Generate(Engine& engine, GenerationRequest request,
                                     const std::function<void(const TextDelta&)>& take) {
  std::vector<ChoiceFinished> choices;
  const auto queue = std::make_shared<EventQueue>();
  CancelAtExit cancel(engine, engine.Submit(std::move(request), SinkInto(queue)));
  while (true) {
    const std::vector<GenerationEvent> events = queue->Take();
    if (events.empty()) {
      cancel.set_ended();
      throw Error(ErrorCode::kResourceExhausted, "not enough memory for this request")
          .WithReason("out_of_memory");
    }
    for (const GenerationEvent& event : events) {
      if (const auto* delta = std::get_if<TextDelta>(&event)) {
        if (take) take(*delta);
      } else if (const auto* choice = std::get_if<ChoiceFinished>(&event)) {
        const auto index = static_cast<size_t>(choice->choice);
        choices.resize(std::max(choices.size(), index + 1));
        choices[index] = *choice;
      } else if (const auto* end = std::get_if<RequestFinished>(&event)) {
        cancel.set_ended();
        ThrowUnlessCompleted(*end);
        return choices;
      }
    }
  }
}

}  // namespace tandem::engine
