#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mailbox.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/thread_name.h"
#include "engine/loop/engine_loop.h"
#include "engine/model/adapter.h"

namespace tandem::engine {
namespace {

void CheckTokens(std::span<const TokenId> tokens, int64_t vocab_size, const char* field) {
  for (const TokenId token : tokens) {
    if (token >= 0 && token < vocab_size) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(field) + " contains token id " + std::to_string(token) +
                    ", but the vocabulary has ids 0 to " + std::to_string(vocab_size - 1))
        .WithParam(field)
        .WithReason("invalid_value");
  }
}

void CheckAtLeast(int64_t value, int64_t least, const char* field) {
  if (value >= least) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(field) + " must be at least " +
                                               std::to_string(least) + ", got " +
                                               std::to_string(value))
      .WithParam(field)
      .WithReason("invalid_value");
}

void CheckPromptLength(const GenerationRequest& request, int64_t max_model_len) {
  const auto prompt_len = static_cast<int64_t>(request.prompt.size());
  if (prompt_len < max_model_len || (request.pooling && prompt_len == max_model_len)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "the prompt has " + std::to_string(prompt_len) + " tokens, but the model's context is " +
          std::to_string(max_model_len) +
          (request.pooling ? " tokens" : " tokens, and at least one must be left to generate"))
      .WithParam("prompt")
      .WithReason("context_length_exceeded");
}

void CheckRequest(const GenerationRequest& request, const LoadedModel& model) {
  if (request.prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "prompt must contain at least one token")
        .WithParam("prompt")
        .WithReason("invalid_value");
  }
  CheckPromptLength(request, model.max_model_len);
  CheckTokens(request.prompt, model.vocab_size, "prompt");
  CheckTokens(request.stop.token_ids, model.vocab_size, "stop_token_ids");
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    CheckTokens({&token, 1}, model.vocab_size, "logit_bias");
  }
  TANDEM_CHECK(request.adapter == nullptr || &request.adapter->base() == model.model.get());
  CheckTokens(request.next_tokens, model.vocab_size, "next_tokens");
  const bool only_reads = request.pooling || !request.next_tokens.empty();
  TANDEM_CHECK(!only_reads || (request.n == 1 && request.stop.max_new_tokens == 0 &&
                               request.top_logprobs < 0 && request.prompt_logprobs < 0));
  TANDEM_CHECK(!request.pooling || request.next_tokens.empty());
  CheckAtLeast(request.n, 1, "n");
  CheckAtLeast(request.stop.max_new_tokens, 0, "max_tokens");
  CheckAtLeast(request.stop.min_new_tokens, 0, "min_tokens");
  if (std::any_of(request.stop.strings.begin(), request.stop.strings.end(),
                  [](const std::string& text) { return text.empty(); })) {
    throw Error(ErrorCode::kInvalidArgument, "stop strings must not be empty")
        .WithParam("stop")
        .WithReason("invalid_value");
  }
}

}  // namespace

struct Engine::Impl {
  Impl(LoadedModel loaded, const EngineOptions& engine_options)
      : model(std::move(loaded)),
        options(engine_options),
        loop(model, options, inbox, *status),
        thread([this] {
          NameThisThread("tandem-engine");
          loop.Run();
        }) {}

  const LoadedModel model;
  const EngineOptions options;
  Mailbox<LoopCommand> inbox;
  const std::shared_ptr<LoopStatus> status = std::make_shared<LoopStatus>();
  std::atomic<uint64_t> next_id{1};

  std::mutex
      submit_mutex;  // guards the next two; held while posting, so that nothing follows the stop
  bool closed = false;
  std::string closed_because;  // EndAll's message; submit_mutex guards it too

  EngineLoop loop;     // owned by the engine thread
  std::thread thread;  // last: it uses every other member
};

Engine::Engine(LoadedModel model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}

Engine::~Engine() {
  {
    const std::lock_guard lock(impl_->submit_mutex);
    impl_->closed = true;
    while (!HasMemoryFor([&] { impl_->inbox.Post(StopCommand{}); })) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  impl_->thread.join();
}

const LoadedModel& Engine::loaded() const { return impl_->model; }

void Engine::Check(const GenerationRequest& request) const { CheckRequest(request, impl_->model); }

RequestId Engine::Submit(GenerationRequest request, EventSink sink) {
  Check(request);
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  std::vector<EventSink> sinks;
  sinks.push_back(std::move(sink));
  return SubmitAll(std::move(requests), std::move(sinks)).front();
}

std::vector<RequestId> Engine::SubmitAll(std::vector<GenerationRequest> requests,
                                         std::vector<EventSink> sinks, int64_t max_waiting) {
  TANDEM_CHECK(requests.size() == sinks.size());
  const std::lock_guard lock(impl_->submit_mutex);
  if (impl_->closed) {
    throw Error(ErrorCode::kUnavailable, impl_->closed_because.empty()
                                             ? "the server is shutting down"
                                             : impl_->closed_because)
        .WithReason("shutting_down");
  }
  if (const std::string failure = impl_->status->failure(); !failure.empty()) {
    throw Error(ErrorCode::kUnavailable, failure).WithReason("model_damaged");
  }
  for (GenerationRequest& request : requests) {
    if (!request.arrival) request.arrival = std::chrono::steady_clock::now();
  }
  const auto n_requests = static_cast<int64_t>(requests.size());
  const uint64_t client = requests.empty() ? 0 : requests.front().client;
  // All allocations precede the count of the first request.
  std::vector<RequestId> ids;
  std::vector<LoopCommand> commands;
  ids.reserve(requests.size());
  commands.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    ids.push_back({impl_->next_id++});
    commands.emplace_back(SubmitCommand{ids.back(), std::move(requests[i]), std::move(sinks[i])});
  }
  const LoopStatus::Entry entry = impl_->status->TryEnqueue(
      client, n_requests, impl_->options.max_queue, max_waiting, impl_->options.max_seqs);
  if (entry == LoopStatus::Entry::kClientFull) {
    throw Error(ErrorCode::kResourceExhausted, "this client has reached its limit of " +
                                                   std::to_string(max_waiting) +
                                                   " waiting requests; try again later")
        .WithReason("rate_limit_exceeded");
  }
  if (entry == LoopStatus::Entry::kQueueFull) {
    throw Error(ErrorCode::kUnavailable,
                "the queue is full: " + std::to_string(impl_->options.max_queue) +
                    " requests are waiting (--max-queue)")
        .WithReason("server_overloaded");
  }
  if (!HasMemoryFor([&] { impl_->inbox.PostAll(std::move(commands)); })) {
    impl_->status->Withdraw(client, n_requests);
    throw std::bad_alloc();
  }
  return ids;
}

void Engine::Cancel(RequestId request) { impl_->inbox.Post(CancelCommand{request}); }

void Engine::EndAll(const std::string& message) {
  const std::lock_guard lock(impl_->submit_mutex);
  impl_->closed = true;
  impl_->closed_because = message;
  impl_->inbox.Post(EndAllCommand{message});
}

void Engine::SetPaused(RequestId request, bool paused) {
  impl_->inbox.Post(PauseCommand{request, paused});
}

EngineStats Engine::stats() const { return impl_->status->Stats(); }

bool Engine::has_failed() const { return !impl_->status->failure().empty(); }

EngineFigures Engine::figures() const { return EngineFigures(impl_->status); }

int64_t Engine::queue_room() const {
  return impl_->status->Room(impl_->options.max_queue, impl_->options.max_seqs);
}

int64_t Engine::queue_room_of(uint64_t client, int64_t max_waiting) const {
  return impl_->status->RoomOf(client, max_waiting, impl_->options.max_seqs);
}

EngineStats EngineFigures::stats() const { return status_->Stats(); }

EngineHistograms EngineFigures::histograms() const { return status_->Histograms(); }

}  // namespace tandem::engine
