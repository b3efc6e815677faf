#include "server/http/detached_requests.h"

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/out_of_memory.h"
#include "server/http/sse.h"

namespace tandem::server {
namespace {

// One task per request waits here at a time, so the callers' limits bound the queue.
constexpr size_t kMaxTasks = 1 << 20;
// No connection waits, so there is nothing to pause for.
constexpr size_t kMaxUnsentBytes = SIZE_MAX / 8;

// Collects the output of one channel. Only the pool's thread calls Collect.
struct Collector {
  std::weak_ptr<ResponseChannel> channel;
  std::function<void(Response)> on_answer;
  Response answer;

  void Collect() {
    const std::shared_ptr<ResponseChannel> source = channel.lock();
    if (!source || !on_answer) return;
    ResponseChannel::Output output = source->Take();
    if (output.head) answer = std::move(*output.head);
    answer.body += output.bytes;
    source->Sent(output.bytes.size());
    if (output.finished) std::exchange(on_answer, nullptr)(std::move(answer));
  }
};

}  // namespace

DetachedRequests::DetachedRequests(Failure failure)
    : failure_(std::move(failure)),
      thread_(std::make_shared<RequestPool>(RequestPool::Options{
          .n_threads = 1, .max_queued = kMaxTasks, .name = "tandem-detach"})) {}

bool DetachedRequests::Post(std::function<void()> task) {
  return thread_->TryPost(0, std::move(task));
}

DetachedRequests::Detached DetachedRequests::Open(std::string request_id,
                                                  std::function<void(Response)> on_answer) {
  const auto collector = std::make_shared<Collector>();
  collector->on_answer = std::move(on_answer);
  const std::weak_ptr<RequestPool> thread = thread_;
  // The collector's channel is alive here: a writer calls its function.
  auto wake = [thread, collector] {
    const std::shared_ptr<RequestPool> alive = thread.lock();
    const std::shared_ptr<ResponseChannel> source = collector->channel.lock();
    if (alive && source) alive->TryPost(0, [collector, source] { collector->Collect(); });
  };
  const auto fail = [failure = failure_, request_id](const Error& error) {
    return failure(error, request_id);
  };
  auto run_tasks = [thread, fail](const std::shared_ptr<ResponseChannel>& channel) {
    const std::shared_ptr<RequestPool> alive = thread.lock();
    if (!alive) return;
    alive->TryPost(0, [channel, fail] {
      std::vector<std::function<void()>> ran;
      const std::optional<Error> error = Attempt([&] { channel->RunTasks(ran); });
      if (!error) return;
      const bool is_answered = HasMemoryFor([&] {
        Response response = fail(*error);
        const std::string events = SseData(response.body);
        channel->Abort(std::move(response), events);
      });
      if (!is_answered) channel->GiveUp();
    });
  };
  const auto channel =
      std::make_shared<ResponseChannel>(kMaxUnsentBytes, std::move(wake), std::move(run_tasks));
  collector->channel = channel;
  ResponseWriter writer(channel, [fail]() -> ResponseWriter::Abandoned {
    Response response = fail(Error(ErrorCode::kInternal, "the request was dropped"));
    std::string events = SseData(response.body);
    return {std::move(response), std::move(events)};
  });
  return {std::move(writer), channel};
}

}  // namespace tandem::server
