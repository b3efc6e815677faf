#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/hub/net_stream.h"
#include "engine/hub/options.h"

namespace tandem::engine {

// The head of an answer. Names are lower case.
struct HttpHead {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> fields;

  // The first field of this name; empty when there is none.
  std::string_view Find(std::string_view name) const;
};

// What all connections of one pull share.
class HttpShared {
 public:
  HttpShared(const HubOptions& hub_options, std::stop_token outer);

  // Ends every wait of these connections, as the outer stop does.
  void RequestStop() { source_.request_stop(); }

 private:
  struct Relay {
    std::stop_source& source;
    void operator()() const { source.request_stop(); }
  };
  std::stop_source source_;
  std::stop_callback<Relay> relay_;

 public:
  const HubOptions options;
  const Url endpoint;
  const TlsClientContext tls;
  const StopEvent stop;
  // The endpoint was reached on the internet, or a proxy reached it, which keeps its address to
  // itself: from there nobody may send us into a private network.
  std::atomic<bool> endpoint_is_public{false};
};

// Asks servers over connections that it keeps, one to each. One request at a time; one thread.
//
// The token goes to the endpoint's own origin (scheme, host and port) and nowhere else, and no more
// once a redirect has led away from it.
class HttpClient {
 public:
  explicit HttpClient(HttpShared& shared);
  ~HttpClient();

  struct Request {
    std::string method = "GET";
    Url url;
    std::vector<std::pair<std::string, std::string>> fields;
    bool may_carry_token = true;
    std::string body = {};  // sent with its length, if there is one
  };

  // Sends the request and reads the head of the answer. What the body of the last answer still
  // held is given up. Throws TransientFault, kDataLoss for what is not HTTP.
  HttpHead Send(const Request& request);
  // At least one byte of the body, or 0 when it has been read. Throws TransientFault when it is
  // cut. Faults name the URL that was asked.
  size_t ReadBody(std::span<char> out);
  // The whole body, which must come within the time for answers. Throws kDataLoss when it is
  // larger.
  std::string ReadWholeBody(size_t max_bytes);

  struct Answer {
    HttpHead head;
    Url url;  // that gave it
    std::vector<HttpHead> redirects;
  };
  // Sends, and goes where redirects lead: at most 10 times, never from https to http. With
  // `stops_at_other_origin`, a redirect away from the endpoint is answered as it is; its
  // destination is then in `url`.
  Answer SendFollowing(Request request, bool stops_at_other_origin = false);

  HttpShared& shared() { return shared_; }

 private:
  class Connection;

  Connection& ConnectionTo(const Url& url, bool* is_reused);
  // The connection that the last answer comes over is not used again.
  void DropConnection();

  HttpShared& shared_;
  std::map<std::string, std::unique_ptr<Connection>> connections_;  // by origin
  std::string current_;                                             // origin; empty: none
  Url asked_;                                                       // last, for messages
};

// How much is borne before a fault is the caller's.
struct Patience {
  explicit Patience(const HubOptions& options)
      : max_attempts(options.max_attempts), max_retry_after(options.max_retry_after) {}

  int max_attempts;  // in a row
  std::chrono::milliseconds max_retry_after;
};

// Waits between attempts, longer from fault to fault.
class Backoff {
 public:
  explicit Backoff(const HttpShared& shared) : Backoff(shared, Patience(shared.options)) {}
  Backoff(const HttpShared& shared, const Patience& patience)
      : shared_(shared), patience_(patience) {}

  void Progressed() { n_faults_ = 0; }
  // Throws the fault when it was the last one in a row that is borne.
  void Wait(const TransientFault& fault);

 private:
  const HttpShared& shared_;
  const Patience patience_;
  int n_faults_ = 0;
};

// Throws what an answer of 400 and above means: TransientFault where trying again may help. What it
// says reaches the message without control characters, shortened, and without the token.
[[noreturn]] void ThrowHttpStatus(const HttpHead& head, const Url& url, const HubOptions& options);

}  // namespace tandem::engine
