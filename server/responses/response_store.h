#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/database/database.h"
#include "server/http/request_pool.h"
#include "server/keys/ownership.h"

namespace tandem::server {

// A response of the Responses API. The texts are JSON.
struct StoredResponse {
  std::string id;
  std::optional<int64_t> owner;  // client number of the key that made it; nullopt: nobody's
  int64_t created_at = 0;        // seconds since 1970
  bool is_finished = true;
  std::string body;         // the response object
  std::string input;        // array of the items before the answer
  std::string events = {};  // of a background response: one event per line
};

// The stored responses: a table of the server's database, or memory if there is no data directory.
// The newest `max_responses` of the last 30 days stay, and fewer if they are large. Any thread.
// Methods that write wait for the disk; they throw kIo, and kUnavailable (insufficient_storage) for
// a full disk.
class ResponseStore {
 public:
  struct Options {
    std::filesystem::path data_dir = {};  // must exist and be locked (JobStore); empty: memory
    DatabaseSource shared = {};           // of replicas, instead of a file in data_dir
    std::string replica = {};             // this process, if the database is shared
    int64_t max_responses = 10'000;
    int64_t max_bytes = int64_t{4} << 30;           // of all texts on disk
    int64_t max_memory_bytes = int64_t{256} << 20;  // of all texts without a data directory
    std::function<int64_t()> now = {};              // seconds since 1970; empty: the system's clock
  };
  // Ends responses that a killed server has left unfinished: they become failed.
  explicit ResponseStore(Options options);
  // Does so for replicas that have ended since.
  void FailLeft();
  ResponseStore(const ResponseStore&) = delete;
  ResponseStore& operator=(const ResponseStore&) = delete;

  // Adds a response, or replaces the one with its id.
  void Put(const StoredResponse& response);
  // nullopt if it is unknown, expired, or not the viewer's. `with_events`: reads `events` too.
  std::optional<StoredResponse> Find(const std::string& id, const Viewer& viewer,
                                     bool with_events = false);
  // Returns false if Find finds nothing.
  bool Delete(const std::string& id, const Viewer& viewer);

  // Runs a task on the store's thread. Returns false after Stop.
  bool Post(std::function<void()> task) { return thread_.TryPost(0, std::move(task)); }
  // Waits for the posted tasks, and refuses new ones.
  void Stop();

 private:
  int64_t OldestAllowed() const;
  // These REQUIRE mutex_ held.
  void PutInMemory(const StoredResponse& response);
  void DeleteInMemory(const std::string& id);
  void DropOldInMemory();
  void DropOldRows();
  void FailUnfinished();

  const Options options_;
  std::mutex mutex_;                    // guards the rest
  std::unique_ptr<Database> database_;  // null: memory
  int64_t next_seq_ = 0;
  int64_t memory_bytes_ = 0;
  std::map<int64_t, StoredResponse> in_memory_;  // by order of arrival
  std::unordered_map<std::string, int64_t> seq_of_;
  RequestPool thread_;
};

// The body of a response that ends as failed. `body` is a response object.
std::string FailedBody(const std::string& body, const std::string& message);

}  // namespace tandem::server
