#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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

// Head of a response. Field names are lower case.
struct HttpHead {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> fields;

  // Value of the first field with this name; empty when the field is absent.
  std::string_view Find(std::string_view name) const;
};

// State that all connections of one pull share.
class HttpShared {
 public:
  HttpShared(const HubOptions& hub_options, std::stop_token outer);

  // Ends every wait of these connections, like the outer stop.
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
  // True once the endpoint was reached at a public address. Behind a proxy, which hides the
  // address, the endpoint's host name decides. Redirects into private networks are refused from
  // then on.
  std::atomic<bool> endpoint_is_public{false};
};

// HTTP client with one kept connection per server. One request at a time; one thread.
//
// The token goes to the endpoint's own origin (scheme, host and port) only, and no longer after a
// redirect to another origin.
class HttpClient {
 public:
  explicit HttpClient(HttpShared& shared);
  ~HttpClient();

  struct Request {
    std::string method = "GET";
    Url url;
    std::vector<std::pair<std::string, std::string>> fields;
    bool may_carry_token = true;
    std::string body = {};  // sent with its length; empty: no body
    // The rest of a large body: its length, and a function that fills a buffer from an offset. Send
    // borrows it until it returns, and may read from the beginning again.
    uint64_t more_bytes = 0;
    std::function<void(uint64_t offset, std::span<char> out)> read_more = {};
  };

  // Sends the request and reads the head of the response. Drops the unread body of the last
  // response. Throws TransientFault, and kDataLoss when the answer is not HTTP.
  HttpHead Send(const Request& request);
  // Reads at least one byte of the body; returns 0 at its end. Throws TransientFault when the body
  // is cut short. Errors name the requested URL.
  size_t ReadBody(std::span<char> out);
  // Reads the whole body within answer_timeout. Throws kDataLoss when it is larger than
  // `max_bytes`.
  std::string ReadWholeBody(size_t max_bytes);

  struct Answer {
    HttpHead head;
    Url url;  // the URL that answered
    std::vector<HttpHead> redirects;
  };
  // Sends and follows redirects: at most 10, never from https to http. With
  // `stops_at_other_origin`, a redirect to another origin is returned, with its destination in
  // `url`.
  Answer SendFollowing(Request request, bool stops_at_other_origin = false);

  HttpShared& shared() { return shared_; }

 private:
  class Connection;

  Connection& ConnectionTo(const Url& url, bool* is_reused);
  // Drops the connection of the last response.
  void DropConnection();
  // Runs `action`, which uses the connection of the last request. Drops it when the action throws.
  // Puts the URL in front of a TransientFault and of kDataLoss, unless the message already names
  // the server or the proxy.
  template <class Action>
  void UseConnection(const Action& action);

  HttpShared& shared_;
  std::map<std::string, std::unique_ptr<Connection>> connections_;  // by origin
  std::string current_;  // origin of the last response; empty: none
  Url asked_;            // last URL, for messages
};

// Limits of retrying.
struct Patience {
  explicit Patience(const HubOptions& options)
      : max_attempts(options.max_attempts), max_retry_after(options.max_retry_after) {}

  const char* log_event = "hub_retry";
  int max_attempts;  // consecutive faults
  std::chrono::milliseconds max_retry_after;
};

// Waits between attempts. The waits grow with consecutive faults.
class Backoff {
 public:
  explicit Backoff(const HttpShared& shared) : Backoff(shared, Patience(shared.options)) {}
  Backoff(const HttpShared& shared, const Patience& patience)
      : shared_(shared), patience_(patience) {}

  void Progressed() { n_faults_ = 0; }
  // Waits, or throws when the limit of consecutive faults or of Retry-After is reached.
  void Wait(const TransientFault& fault);

 private:
  const HttpShared& shared_;
  const Patience patience_;
  int n_faults_ = 0;
};

// Code for refusals that a retry would not change. Never kUnavailable: the server is reachable.
ErrorCode CodeOfRefusal(int status);

// Throws the error of a response with status 400 or above: TransientFault when a retry may help.
// The server's text is shortened, and control characters and the token are removed.
[[noreturn]] void ThrowHttpStatus(const HttpHead& head, const Url& url, const HubOptions& options);

}  // namespace tandem::engine
