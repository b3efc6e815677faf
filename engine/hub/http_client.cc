#include "engine/hub/http_client.h"

#include <algorithm>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <charconv>
#include <random>

#include "engine/base/ascii.h"
#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/hub/redacted.h"

namespace tandem::engine {
namespace {

namespace net = boost::asio;
namespace beast_http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using Parser = beast_http::response_parser<beast_http::buffer_body>;

constexpr int kMaxRedirects = 10;
constexpr int kMaxInterimHeads = 8;  // 1xx responses before the final one
constexpr uint32_t kMaxHeadBytes = uint32_t{64} << 10;
constexpr size_t kBodyReadBytes = size_t{64} << 10;
// Bounds one line between chunks, or the trailer after the last chunk.
constexpr size_t kMaxInputBytes = size_t{256} << 10;
constexpr size_t kMaxShownBytes = 200;
constexpr std::chrono::milliseconds kMaxBackoff{8'000};

// One write has the idle timeout: pieces keep it a bound of the pauses, not of a whole upload.
constexpr size_t kWriteBytes = size_t{256} << 10;

void WriteInPieces(NetStream& stream, const HttpClient::Request& request) {
  std::vector<char> piece(std::min<uint64_t>(request.more_bytes, kWriteBytes));
  for (uint64_t begin = 0; begin < request.more_bytes; begin += piece.size()) {
    piece.resize(std::min<uint64_t>(request.more_bytes - begin, kWriteBytes));
    request.read_more(begin, piece);
    stream.Write({piece.data(), piece.size()});
  }
}

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

Url CheckedEndpoint(const std::string& text) {
  std::optional<Url> url = ParseUrl(text);
  if (!url)
    throw Error(ErrorCode::kInvalidArgument,
                "the hub's endpoint '" + text + "' is not an http or https URL: check HF_ENDPOINT");
  return std::move(*url);
}

}  // namespace

std::string_view HttpHead::Find(std::string_view name) const {
  for (const auto& [field, value] : fields) {
    if (field == name) return value;
  }
  return {};
}

HttpShared::HttpShared(const HubOptions& hub_options, std::stop_token outer)
    : relay_(std::move(outer), Relay{source_}),
      options(hub_options),
      endpoint(CheckedEndpoint(hub_options.endpoint)),
      stop(source_.get_token()) {}

// A stream, its unparsed bytes, and the response being read.
class HttpClient::Connection {
 public:
  Connection(const NetRoute& route, const HttpShared& shared)
      : stream(route, shared.tls, {shared.options.connect_timeout, shared.options.idle_timeout},
               shared.stop),
        is_proxied(route.proxy.has_value()) {}

  // Reads heads up to the final one. Returns false when the peer closed before the first byte.
  bool ReadHead(bool is_head_request, Clock::time_point deadline) {
    for (int n_interim = 0; ReadOneHead(is_head_request, deadline); ++n_interim) {
      const int status = Status();
      if (status >= 200) {
        const auto length = parser_->content_length();
        if (length && !parser_->is_done() && !parser_->chunked()) plain_left_ = *length;
        return true;
      }
      // 1xx announce another head, except 101: no other protocol was requested.
      if (status < 100 || status == 101 || n_interim == kMaxInterimHeads) {
        throw Error(ErrorCode::kDataLoss, "unexpected status " + std::to_string(status));
      }
    }
    return false;
  }

  HttpHead Head() const {
    HttpHead head;
    head.status = Status();
    for (const auto& field : parser_->get()) {
      head.fields.emplace_back(LowerCase(View(field.name_string())), View(field.value()));
    }
    return head;
  }

  size_t ReadBody(std::span<char> out) {
    if (plain_left_) return ReadPlainBody(out);
    while (!parser_->is_done()) {
      auto& body = parser_->get().body();
      body.data = out.data();
      body.size = out.size();
      body.more = true;
      // One call takes a chunk's head, another its bytes. More input is needed only when the parser
      // takes none.
      const size_t n_taken = input_.empty() ? 0 : Put();
      const size_t n = out.size() - body.size;
      if (n > 0) return n;
      if (n_taken > 0) continue;
      if (!Fill()) {
        boost::beast::error_code fault;
        parser_->put_eof(fault);
        if (fault || !parser_->is_done()) {
          throw TransientFault(ErrorCode::kUnavailable,
                               "the connection closed before the response was complete");
        }
      }
    }
    return 0;
  }

  // Bytes after the response would count as part of the next one.
  bool can_be_kept() const {
    const bool is_read = plain_left_ ? *plain_left_ == 0 : parser_ && parser_->is_done();
    return !is_retired_ && is_read && parser_->keep_alive() && input_.empty();
  }
  // The request was not sent whole: no other request may follow it.
  void Retire() { is_retired_ = true; }

  NetStream stream;
  const bool is_proxied;

 private:
  int Status() const { return static_cast<int>(parser_->get().result_int()); }

  bool ReadOneHead(bool is_head_request, Clock::time_point deadline) {
    plain_left_.reset();
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    parser_->skip(is_head_request);
    bool has_bytes = !input_.empty();
    while (!parser_->is_header_done()) {
      if (!input_.empty()) Put();
      if (parser_->is_header_done()) break;
      if (!Fill()) {
        if (!has_bytes) return false;
        throw TransientFault(ErrorCode::kUnavailable,
                             "the connection closed inside the response header");
      }
      has_bytes = true;
      if (Clock::now() > deadline) {
        throw TransientFault(ErrorCode::kDeadlineExceeded, "the response header took too long");
      }
    }
    return true;
  }

  // Without a copy: a body of known length needs no parser.
  size_t ReadPlainBody(std::span<char> out) {
    size_t n = static_cast<size_t>(std::min<uint64_t>(out.size(), *plain_left_));
    if (n == 0) return 0;
    if (input_.empty()) {
      n = stream.Read(out.first(n));
      if (n == 0) {
        throw TransientFault(ErrorCode::kUnavailable,
                             "the connection closed before the response was complete");
      }
    } else {
      n = input_.copy(out.data(), n);
      input_.erase(0, n);
    }
    *plain_left_ -= n;
    return n;
  }

  // Feeds the input to the parser and returns the number of bytes it took.
  size_t Put() {
    boost::beast::error_code fault;
    const size_t n = parser_->put(net::buffer(input_), fault);
    input_.erase(0, n);
    if (fault && fault != beast_http::error::need_more && fault != beast_http::error::need_buffer) {
      throw Error(ErrorCode::kDataLoss, "the response is not HTTP/1.1 (" + fault.message() + ")");
    }
    return n;
  }

  bool Fill() {
    if (input_.size() >= kMaxInputBytes) {
      throw Error(ErrorCode::kDataLoss,
                  "the response is not HTTP/1.1 (a header line or chunk header is too long)");
    }
    const size_t begin = input_.size();
    input_.resize(begin + kBodyReadBytes);
    const size_t n = UndoOnFailure([&] { return stream.Read(std::span(input_).subspan(begin)); },
                                   [&] { input_.resize(begin); });
    input_.resize(begin + n);
    return n > 0;
  }

  std::optional<Parser> parser_;
  std::string input_;
  std::optional<uint64_t> plain_left_;  // of a body that is not chunked; unset: the parser reads it
  bool is_retired_ = false;
};

HttpClient::HttpClient(HttpShared& shared) : shared_(shared) {}
HttpClient::~HttpClient() = default;

HttpClient::Connection& HttpClient::ConnectionTo(const Url& url, bool* is_reused) {
  const std::string origin = url.Origin();
  auto it = connections_.find(origin);
  *is_reused = it != connections_.end();
  if (!*is_reused) {
    // Keeps the endpoint and one other origin. A third origin means that the second has moved.
    if (connections_.size() >= 3) connections_.clear();
    const bool is_endpoint = IsSameOrigin(url, shared_.endpoint);
    const NetRoute route{url,
                         ProxyFor(url, shared_.options.https_proxy, shared_.options.http_proxy,
                                  shared_.options.no_proxy),
                         !is_endpoint && shared_.endpoint_is_public};
    auto connection = std::make_unique<Connection>(route, shared_);
    if (is_endpoint) {
      // A proxy hides the endpoint's address, so its name decides.
      const bool is_private =
          route.proxy ? IsPrivateHost(url.host) : connection->stream.is_private();
      if (!is_private) shared_.endpoint_is_public = true;
    }
    it = connections_.emplace(origin, std::move(connection)).first;
  }
  current_ = origin;
  return *it->second;
}

void HttpClient::DropConnection() {
  connections_.erase(current_);
  current_.clear();
}

template <class Action>
void HttpClient::UseConnection(const Action& action) {
  std::optional<Error> damage;
  const auto fault = ExceptionOf<TransientFault>([&] {
    damage =
        ErrorOf({ErrorCode::kDataLoss}, [&] { UndoOnFailure(action, [&] { DropConnection(); }); });
  });
  const auto named = [&](std::string_view text) {
    const bool is_named = text.starts_with(asked_.Origin()) || text.starts_with("proxy ");
    return (is_named ? "" : asked_.Display() + ": ") + std::string(text);
  };
  if (fault) throw fault->WithMessage(named(fault->what()));
  if (damage) throw Error(damage->code(), named(damage->what()));
}

HttpHead HttpClient::Send(const Request& request) {
  if (!current_.empty()) {
    const auto it = connections_.find(current_);
    if (it != connections_.end() && !it->second->can_be_kept()) connections_.erase(it);
    current_.clear();
  }
  asked_ = request.url;
  const Url& url = asked_;
  for (;;) {
    bool is_reused = false;
    Connection& connection = ConnectionTo(url, &is_reused);
    const bool is_plain_proxied = connection.is_proxied && !url.is_https;
    std::string text = request.method + ' ' + (is_plain_proxied ? url.Origin() : "") + url.target +
                       " HTTP/1.1\r\nHost: " + url.Authority() +
                       "\r\nUser-Agent: tandem\r\nAccept: */*\r\nAccept-Encoding: identity\r\n";
    if (is_plain_proxied) {
      const auto proxy = ParseUrl(shared_.options.http_proxy);
      if (const std::string value = ProxyAuthorization(*proxy); !value.empty()) {
        text += "Proxy-Authorization: " + value + "\r\n";
      }
    }
    for (const auto& [name, value] : request.fields) {
      text.append(name).append(": ").append(value).append("\r\n");
    }
    if (request.may_carry_token && !shared_.options.token.empty() &&
        IsSameOrigin(url, shared_.endpoint)) {
      text += "Authorization: Bearer " + shared_.options.token + "\r\n";
    }
    const uint64_t n_body = request.body.size() + request.more_bytes;
    if (n_body > 0) text += "Content-Length: " + std::to_string(n_body) + "\r\n";
    const auto read_head = [&] {
      if (!connection.ReadHead(request.method == "HEAD",
                               Clock::now() + shared_.options.answer_timeout)) {
        throw TransientFault(ErrorCode::kUnavailable,
                             "the connection closed before a response arrived");
      }
    };
    const auto exchange = [&] {
      connection.stream.Write(text + "\r\n" + request.body);
      const auto cut =
          ExceptionOf<TransientFault>([&] { WriteInPieces(connection.stream, request); });
      if (!cut) return read_head();
      // A server that refuses a long body may respond and close before it has read all of it.
      if (ExceptionOf<Error>(read_head)) throw TransientFault(*cut);
      connection.Retire();
    };
    // A kept connection may have been closed by the server meanwhile: retry on a new one.
    const auto may_be_stale = [&](const TransientFault& fault) {
      return is_reused && fault.code() == ErrorCode::kUnavailable;
    };
    if (ExceptionIf<TransientFault>(may_be_stale, [&] { UseConnection(exchange); })) continue;
    HttpHead head = connection.Head();
    const std::string encoding = LowerCase(head.Find("content-encoding"));
    if (!encoding.empty() && encoding != "identity") {
      DropConnection();
      throw Error(ErrorCode::kDataLoss, url.Display() + ": the response has Content-Encoding '" +
                                            EscapeJson(encoding.substr(0, 40)) +
                                            "', but the request allows only identity");
    }
    return head;
  }
}

size_t HttpClient::ReadBody(std::span<char> out) {
  const auto it = connections_.find(current_);
  TANDEM_CHECK(it != connections_.end());
  size_t n = 0;
  UseConnection([&] { n = it->second->ReadBody(out); });
  return n;
}

std::string HttpClient::ReadWholeBody(size_t max_bytes) {
  const Clock::time_point deadline = Clock::now() + shared_.options.answer_timeout;
  std::string body;
  std::vector<char> buffer(kBodyReadBytes);
  while (const size_t n = ReadBody(buffer)) {
    if (body.size() + n > max_bytes) {
      DropConnection();
      throw Error(ErrorCode::kDataLoss, asked_.Display() +
                                            ": the response is larger than the limit of " +
                                            std::to_string(max_bytes) + " bytes");
    }
    if (Clock::now() > deadline) {
      DropConnection();
      throw TransientFault(ErrorCode::kDeadlineExceeded,
                           asked_.Display() + ": the response took too long");
    }
    body.append(buffer.data(), n);
  }
  return body;
}

HttpClient::Answer HttpClient::SendFollowing(Request request, bool stops_at_other_origin) {
  Answer answer;
  for (int n_redirects = 0;; ++n_redirects) {
    answer.head = Send(request);
    answer.url = request.url;
    if (!IsRedirect(answer.head.status)) return answer;

    const std::string_view location = answer.head.Find("location");
    std::optional<Url> next = ResolveUrl(request.url, location);
    if (location.empty() || !next || !next->user_info.empty()) {
      throw Error(
          ErrorCode::kDataLoss,
          request.url.Display() + " redirects to a location that is not an http or https URL");
    }
    if (request.url.is_https && !next->is_https) {
      throw Error(ErrorCode::kPermissionDenied,
                  request.url.Display() + " redirects to " + next->Origin() +
                      ", but a redirect from https to http is never followed");
    }
    if (n_redirects == kMaxRedirects) {
      throw Error(ErrorCode::kDataLoss, request.url.Display() + ": more than " +
                                            std::to_string(kMaxRedirects) + " redirects in a row");
    }
    const bool leaves = !IsSameOrigin(*next, request.url);
    if (leaves && stops_at_other_origin) {
      answer.url = std::move(*next);
      return answer;
    }
    if (leaves) request.may_carry_token = false;
    answer.redirects.push_back(std::move(answer.head));
    request.url = std::move(*next);
  }
}

void Backoff::Wait(const TransientFault& fault) {
  if (++n_faults_ >= patience_.max_attempts) {
    throw Error(fault.code(), std::string(fault.what()) + " (" + std::to_string(n_faults_) +
                                  (n_faults_ == 1 ? " attempt)" : " attempts)"));
  }
  std::chrono::milliseconds wait =
      std::min(shared_.options.first_backoff * (1 << std::min(n_faults_ - 1, 10)), kMaxBackoff);
  // Jitter: clients that failed together should not retry together.
  static thread_local std::minstd_rand random{std::random_device()()};
  wait = std::chrono::milliseconds(
      std::uniform_int_distribution<int64_t>(wait.count() / 2, wait.count())(random));
  if (fault.retry_after) {
    if (*fault.retry_after > patience_.max_retry_after) {
      throw Error(fault.code(), std::string(fault.what()) +
                                    "; the server asks to wait: try again in " +
                                    std::to_string(fault.retry_after->count() / 1000) + " s");
    }
    wait = std::max(wait, *fault.retry_after);
  }
  spdlog::warn("{} attempt={} wait_ms={} reason=\"{}\"", patience_.log_event, n_faults_ + 1,
               wait.count(), fault.what());
  shared_.stop.Sleep(wait);
}

namespace {

// The server's explanation of a refusal, made safe for a message.
std::string ShownMessage(std::string_view text, const HubOptions& options) {
  std::string shown = Redacted(text, {options.token}, "[token]");
  if (shown.size() > kMaxShownBytes) shown = shown.substr(0, kMaxShownBytes) + "...";
  return EscapeJson(shown);
}

}  // namespace

ErrorCode CodeOfRefusal(int status) {
  switch (status) {
    case 401:
      return ErrorCode::kUnauthenticated;
    case 403:
    case 407:
    case 451:  // for legal reasons
      return ErrorCode::kPermissionDenied;
    case 404:
    case 410:
      return ErrorCode::kNotFound;
    case 412:  // another version than the one that was asked for
    case 416:  // the file is shorter than the server's list claims
      return ErrorCode::kDataLoss;
    default:
      return ErrorCode::kFailedPrecondition;
  }
}

void ThrowHttpStatus(const HttpHead& head, const Url& url, const HubOptions& options) {
  const std::string said = ShownMessage(head.Find("x-error-message"), options);
  const std::string message = url.Display() + ": status " + std::to_string(head.status) +
                              (said.empty() ? "" : " (" + said + ")");
  if (head.status == 407 && !url.is_https) {
    if (const auto proxy = ProxyFor(url, {}, options.http_proxy, options.no_proxy)) {
      throw Error(ErrorCode::kPermissionDenied, "proxy " + proxy->Origin() +
                                                    " requires a user name and a password: set "
                                                    "HTTP_PROXY=http://USER:PASSWORD@HOST:PORT");
    }
  }
  if (head.status != 408 && head.status != 425 && head.status != 429 && head.status < 500) {
    throw Error(CodeOfRefusal(head.status), message);
  }
  TransientFault fault(ErrorCode::kUnavailable, message);
  const std::string_view text = head.Find("retry-after");
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size() && seconds >= 0) {
    fault.retry_after = std::chrono::seconds(std::min<int64_t>(seconds, 86'400));
  }
  throw fault;
}

}  // namespace tandem::engine
