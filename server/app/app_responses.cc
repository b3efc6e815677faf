// The stored and background responses of the app.

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/app/app.h"

namespace tandem::server {

void App::StartResponses(std::filesystem::path data_dir) {
  responses_ = std::make_unique<ResponseStore>(
      ResponseStore::Options{.data_dir = std::move(data_dir),
                             .shared = options_.database,
                             .replica = replica_,
                             .max_responses = options_.max_responses});
  context_.responses = responses_.get();
}

void App::WaitForBackgroundResponses(std::chrono::steady_clock::time_point deadline) {
  constexpr std::chrono::milliseconds kInterval{20};
  const auto is_idle = [this] {
    const auto all = background_.All();
    return std::all_of(all.begin(), all.end(), [](const auto& one) { return one->is_over(); });
  };
  while (!is_idle() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kInterval);
  }
}

// Runs after the last request, so no response starts any more.
void App::EndBackgroundResponses() {
  context_.responses = nullptr;
  if (!responses_) return;
  for (const auto& response : background_.All()) {
    StoredResponse record;
    if (!response->BeginFailure("the server was stopped before the response was complete: create "
                                "it again",
                                &record)) {
      continue;
    }
    const auto error = Attempt([&] { responses_->Put(record); });
    if (error) {
      spdlog::error("response_not_stored id={} reason=\"{}\"", record.id, error->what());
    }
    response->EndNow();
  }
  responses_->Stop();
}

}  // namespace tandem::server
