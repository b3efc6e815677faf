#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "engine/base/error.h"

namespace tandem::server {

// Downloads models from the hub into the cache of engine/hub, one after the other on a thread of
// its own. Thread-safe.
class ModelPulls {
 public:
  struct Progress {
    uint64_t bytes_total = 0;  // 0: not known yet
    uint64_t bytes_done = 0;
  };
  // Both run on the thread of the downloads.
  struct Watcher {
    // Called several times a second. False ends the download, because nobody waits for it.
    std::function<bool(const Progress&)> on_progress;
    // Called once, with the error or with the path of the model. Not called after Stop has begun:
    // the server then ends the answers.
    std::function<void(const std::optional<Error>& error, const std::string& path)> on_end;
  };

  ModelPulls();
  ~ModelPulls();  // Stop()
  ModelPulls(const ModelPulls&) = delete;
  ModelPulls& operator=(const ModelPulls&) = delete;

  // `name` is a model of the hub, as for `tandem pull`. Throws kInvalidArgument for other names,
  // and kUnavailable if many downloads wait already or the server stops. Fetched bytes stay in the
  // cache when a download ends early.
  void Start(const std::string& name, Watcher watcher);
  // Ends the running download and forgets the others.
  void Stop();

 private:
  struct Pull {
    std::string name;
    Watcher watcher;
    std::stop_source stop;
  };

  void Run();
  void PullOne(const Pull& pull);

  std::mutex mutex_;  // guards the next three
  std::condition_variable wake_;
  std::deque<std::shared_ptr<const Pull>> waiting_;
  std::stop_source running_;  // of the running download
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace tandem::server
