#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/hub/http_client.h"
#include "engine/objects/object_options.h"
#include "engine/objects/object_url.h"
#include "engine/objects/sigv4.h"

namespace tandem::engine {

// A version of an object. Its fields are the store's claims.
struct ObjectInfo {
  std::string key;
  uint64_t size = 0;
  std::string etag;  // with its quotes
};

// A multipart upload that has begun and not ended.
struct UnfinishedUpload {
  std::string key;
  std::string id;
};

// The body of a request. It is read in pieces while it is sent, and again when the request is
// repeated.
struct ObjectBody {
  uint64_t n_bytes = 0;
  std::function<void(uint64_t offset, std::span<char> out)> read = {};

  static ObjectBody Of(std::string_view bytes);  // borrows
};

// One bucket, shared by the connections to it. Any thread.
class ObjectStore {
 public:
  // Throws kInvalidArgument for bad variables of the environment.
  explicit ObjectStore(const ObjectUrl& url, std::stop_token stop = {});
  ObjectStore(const ObjectUrl& url, ObjectOptions options, std::stop_token stop = {});

  const ObjectUrl& place() const { return place_; }  // the bucket, without a key
  const ObjectOptions& options() const { return options_; }
  HttpShared& http() { return http_; }
  // Whether signatures cover the bodies of requests.
  bool signs_bodies() const { return signs_bodies_; }
  // `s3://BUCKET/KEY`, for messages and logs.
  std::string Name(std::string_view key) const;

  // Seconds that the store's clock is ahead of this machine's, as its refusals say; signatures
  // follow it.
  std::atomic<int64_t> clock_ahead_s{0};

 private:
  const ObjectUrl place_;
  const ObjectOptions options_;
  HttpShared http_;
  const bool signs_bodies_;
};

// Requests to one bucket over one connection. One thread. Every call repeats its request after
// transient faults (429, 5xx, timeouts, cut connections), with growing waits and Retry-After. After
// a refusal of this machine's time (RequestTimeTooSkewed) it uses the store's. No redirect is
// followed. Errors name the bucket, the key, the status and what to do. Throws
// kPermissionDenied, kUnauthenticated, kNotFound, kFailedPrecondition, kUnavailable, kDataLoss for
// answers that contradict themselves, and kCancelled.
class ObjectClient {
 public:
  explicit ObjectClient(ObjectStore& store);

  ObjectStore& store() { return store_; }

  // Returns nullopt when no object has this key.
  std::optional<ObjectInfo> Find(const std::string& key);
  // All objects whose keys begin with the prefix, in the order of their keys. Throws kDataLoss when
  // there are more than `max_objects`.
  std::vector<ObjectInfo> List(const std::string& prefix, size_t max_objects);
  // Fills `out` with the bytes from `begin` of this version. Throws kDataLoss when the object has
  // changed meanwhile. REQUIRES: begin + out.size() <= info.size.
  void ReadRange(const ObjectInfo& info, uint64_t begin, std::span<char> out);
  // The whole object; nullopt when there is none. Throws kDataLoss when it is larger.
  std::optional<std::string> Read(const std::string& key, size_t max_bytes);

  // Creates or replaces an object, as one atomic change.
  void Put(const std::string& key, std::string_view bytes) { Put(key, ObjectBody::Of(bytes)); }
  void Put(const std::string& key, const ObjectBody& body);
  // Does nothing when no object has this key.
  void Delete(const std::string& key);

  // A multipart upload. The object appears with FinishUpload, whole. Part numbers begin with 1.
  std::string BeginUpload(const std::string& key);
  std::string PutPart(const std::string& key, const std::string& upload, int number,
                      const ObjectBody& body);
  void FinishUpload(const std::string& key, const std::string& upload,
                    const std::vector<std::string>& etags);
  // Removes the parts that were sent. Does nothing when the upload does not exist.
  void AbortUpload(const std::string& key, const std::string& upload);
  // Multipart uploads of keys with this prefix that have not ended, at most 1000.
  std::vector<UnfinishedUpload> UnfinishedUploads(const std::string& prefix);

 private:
  struct Call {
    std::string method;
    std::string key;
    std::vector<std::pair<std::string, std::string>> query = {};
    std::vector<std::pair<std::string, std::string>> fields = {};  // lower-case names
    ObjectBody body = {};
    int accepted_status = 0;  // of the refusals that Send returns: 404 or 412
  };

  // Sends one signed request and returns the head of a response with status 2xx or the accepted
  // one. Throws for all others.
  HttpHead Send(const Call& call);
  // Adds the fields of the signature.
  void Sign(const Call& call, SigV4Request signed_part, HttpClient::Request& request);
  std::string PayloadHash(const Call& call) const;
  [[noreturn]] void ThrowStatus(const Call& call, const HttpHead& head);
  // Throws TransientFault if the request may succeed when it is signed as of the store's time.
  // `is_unnamed`: the refusal gives no reason, which may be another one.
  void FollowClock(const HttpHead& head, bool is_unnamed, std::string& message);
  // Waits after a fault of this call; throws when there were too many.
  void WaitAfter(const Call& call, const TransientFault& fault, Backoff& backoff);
  // Asks for the rest of a range and advances `n_read`. Throws TransientFault when the answer is
  // cut.
  void ReadOnce(const ObjectInfo& info, uint64_t begin, std::span<char> out, size_t& n_read);
  Patience PatienceOfStore() const;
  // Repeats `action` after transient faults.
  template <class Action>
  auto Retry(const Call& call, const Action& action);
  // The whole body of the last response, bounded.
  std::string Body(size_t max_bytes) { return http_.ReadWholeBody(max_bytes); }
  std::string Where(const Call& call) const;

  ObjectStore& store_;
  HttpClient http_;
  int64_t signed_ahead_s_ = 0;  // clock_ahead_s of the last request
};

}  // namespace tandem::engine
