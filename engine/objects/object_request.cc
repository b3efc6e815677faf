#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/hub/redacted.h"
#include "engine/io/sha256.h"
#include "engine/objects/object_answer.h"
#include "engine/objects/object_client.h"
#include "engine/objects/xml_reader.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kMaxObjectBytes = uint64_t{1} << 50;
constexpr size_t kShownBytes = 300;
constexpr uint64_t kHashedBytes = uint64_t{256} << 10;  // stay in the cache
// Stores refuse a difference of more than 15 minutes. A clock that differs more than a day was
// never set.
constexpr int64_t kAllowedSkewS = 14 * 60;
constexpr int64_t kMostSkewS = 24 * 60 * 60;

std::string TimeOfRequest(int64_t ahead_s) {
  const std::time_t now = std::time(nullptr) + ahead_s;
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const size_t n = std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return std::string(text, n);
}

std::optional<std::chrono::milliseconds> RetryAfter(const HttpHead& head) {
  const std::optional<uint64_t> seconds = ParseSize(head.Find("retry-after"));
  if (!seconds) return std::nullopt;
  return std::chrono::seconds(std::min<uint64_t>(*seconds, 86'400));
}

// Seconds that the server's clock is ahead of this machine's; nullopt without a valid Date.
std::optional<int64_t> SecondsAhead(const HttpHead& head) {
  const std::string date(head.Find("date"));
  std::tm parts{};
  const char* end = strptime(date.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return timegm(&parts) - std::time(nullptr);
}

// Whether the host is this machine, by its name alone. A proxy may be another machine.
bool IsThisMachine(const HttpShared& http) {
  const Url& url = http.endpoint;
  if (ProxyFor(url, http.options.https_proxy, http.options.http_proxy, http.options.no_proxy)) {
    return false;
  }
  const bool is_address = std::all_of(url.host.begin(), url.host.end(), [](char c) {
    return (c >= '0' && c <= '9') || c == '.' || c == ':';
  });
  return url.host == "localhost" || url.host == "::1" ||
         (is_address && url.host.starts_with("127."));
}

// What the user can do about a refusal.
std::string Advice(int status, std::string_view code, std::string_view region,
                   const ObjectOptions& options) {
  if (!region.empty() && region != options.region) {
    return "; the bucket is in the region " + Quoted(region, 64) + ": set AWS_REGION";
  }
  if (code == "NoSuchBucket") return "; create the bucket, or check its name and the endpoint";
  if (code == "SignatureDoesNotMatch") return "; check the secret key and the endpoint";
  if (code == "RequestTimeTooSkewed") return "; set this machine's clock";
  if (code == "ExpiredToken") return "; the session token has expired: get new credentials";
  if (code == "NoSuchUpload") return "; another process or a rule of the bucket ended the upload";
  if (status == 401 || status == 403) {
    if (!options.keys.empty()) return "; give these keys the permission, or use other keys";
    if (!options.unsupported_source.empty()) {
      return "; no keys were sent: " + options.unsupported_source +
             " is not supported, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
    }
    return "; no keys were sent: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
  }
  if (status >= 300 && status < 400) {
    return "; redirects are not followed: check the region and the endpoint";
  }
  return "";
}

}  // namespace

std::string WithoutKeys(std::string_view text, const ObjectKeys& keys) {
  return Redacted(text, {keys.access_key_id, keys.secret_access_key, keys.session_token}, "[key]");
}

std::optional<uint64_t> ParseSize(std::string_view text) {
  uint64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value > kMaxObjectBytes) return std::nullopt;
  return value;
}

bool IsTransientAnswer(int status, std::string_view code) {
  return status == 408 || status == 425 || status == 429 || status >= 500 || code == "SlowDown" ||
         code == "RequestTimeout" || code == "InternalError";
}

ObjectBody ObjectBody::Of(std::string_view bytes) {
  return {bytes.size(), [bytes](uint64_t offset, std::span<char> out) {
            std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
          }};
}

ObjectStore::ObjectStore(const ObjectUrl& url, std::stop_token stop)
    : ObjectStore(url, ObjectOptionsFromEnvironment(url), std::move(stop)) {}

ObjectStore::ObjectStore(const ObjectUrl& url, ObjectOptions options, std::stop_token stop)
    : place_{url.kind, url.bucket, {}},
      options_(std::move(options)),
      http_(options_.http, std::move(stop)),
      signs_bodies_(
          options_.signs_bodies.value_or(!http_.endpoint.is_https && !IsThisMachine(http_))) {
  if (!options_.keys.empty() && !http_.endpoint.is_https && !IsPrivateHost(http_.endpoint.host)) {
    spdlog::warn("objects_in_the_clear bucket={} reason=\"the endpoint is not https\"", url.bucket);
  }
}

std::string ObjectStore::Name(std::string_view key) const {
  ObjectUrl url = place_;
  url.key = key;
  return url.Text();
}

ObjectClient::ObjectClient(ObjectStore& store) : store_(store), http_(store.http()) {}

std::string ObjectClient::Where(const Call& call) const {
  return call.method + " " + EscapeJson(store_.Name(call.key));
}

Patience ObjectClient::PatienceOfStore() const {
  Patience patience(store_.options().http);
  patience.log_event = "objects_retry";
  return patience;
}

void ObjectClient::WaitAfter(const Call& call, const TransientFault& fault, Backoff& backoff) {
  const std::string where = Where(call);
  const bool is_named = std::string_view(fault.what()).starts_with(where);
  backoff.Wait(is_named ? fault : fault.WithMessage(where + ": " + fault.what()));
}

// TLS protects the body already, and a body for this machine is on no network: a hash would cost as
// much time as the transfer.
std::string ObjectClient::PayloadHash(const Call& call) const {
  if (!store_.signs_bodies() && call.body.n_bytes > 0) return "UNSIGNED-PAYLOAD";
  Sha256 hash;
  std::vector<char> piece(std::min<uint64_t>(call.body.n_bytes, kHashedBytes));
  for (uint64_t begin = 0; begin < call.body.n_bytes; begin += piece.size()) {
    piece.resize(std::min<uint64_t>(call.body.n_bytes - begin, kHashedBytes));
    call.body.read(begin, piece);
    hash.Update(std::as_bytes(std::span(piece)));
  }
  return ToHex(hash.Finish());
}

void ObjectClient::Sign(const Call& call, SigV4Request signed_part, HttpClient::Request& request) {
  const ObjectOptions& options = store_.options();
  signed_ahead_s_ = store_.clock_ahead_s;
  const std::string time = TimeOfRequest(signed_ahead_s_);
  signed_part.payload_sha256 = PayloadHash(call);
  request.fields.emplace_back("x-amz-content-sha256", signed_part.payload_sha256);
  request.fields.emplace_back("x-amz-date", time);
  if (!options.keys.session_token.empty()) {
    request.fields.emplace_back("x-amz-security-token", options.keys.session_token);
  }
  signed_part.fields = request.fields;
  signed_part.fields.emplace_back("host", request.url.Authority());
  request.fields.emplace_back(
      "Authorization", SigV4Authorization(signed_part, options.keys, {time, options.region}));
}

HttpHead ObjectClient::Send(const Call& call) {
  const ObjectOptions& options = store_.options();
  HttpClient::Request request;
  request.method = call.method;
  request.url = store_.http().endpoint;
  request.may_carry_token = false;
  request.more_bytes = call.body.n_bytes;
  request.read_more = call.body.read;

  SigV4Request signed_part;
  signed_part.method = call.method;
  signed_part.path = options.bucket_in_host
                         ? "/" + EncodedKey(call.key)
                         : "/" + EncodedKey(store_.Name("").substr(5)) + EncodedKey(call.key);
  signed_part.query = call.query;
  const std::string query = CanonicalQuery(call.query);
  request.url.target = signed_part.path + (query.empty() ? "" : "?" + query);

  request.fields = call.fields;
  if (!options.keys.empty()) {
    Sign(call, std::move(signed_part), request);
  }
  if (call.body.n_bytes == 0 && call.method != "GET" && call.method != "HEAD") {
    request.fields.emplace_back("Content-Length", "0");
  }
  HttpHead head = http_.Send(request);
  if (head.status >= 200 && head.status < 300) return head;
  if (head.status == call.accepted_status) {
    // A missing bucket is not a missing object. The answer to HEAD has no body to tell.
    if (call.method == "HEAD") return head;
    const std::string body = Body(kMaxAnswerBytes);
    if (body.find("NoSuchBucket") == std::string::npos) return head;
    throw Error(ErrorCode::kNotFound, Where(call) + ": status 404 NoSuchBucket" +
                                          Advice(404, "NoSuchBucket", "", options));
  }
  ThrowStatus(call, head);
}

void ObjectClient::ThrowStatus(const Call& call, const HttpHead& head) {
  const ObjectOptions& options = store_.options();
  std::string code;
  std::string said;
  std::string region(head.Find("x-amz-bucket-region"));
  if (call.method != "HEAD") {
    // A body that is too large or no XML adds nothing.
    ErrorOf({ErrorCode::kDataLoss}, [&] {
      const XmlElement answer = ParseXml(Body(kMaxAnswerBytes));
      if (answer.name != "Error") return;
      code = answer.TextOf("Code");
      said = answer.TextOf("Message");
      if (region.empty()) region = answer.TextOf("Region");
    });
  }
  std::string message = Where(call) + ": status " + std::to_string(head.status);
  if (!code.empty()) message += " " + EscapeJson(WithoutKeys(code, options.keys).substr(0, 60));
  if (!said.empty()) message += " " + Quoted(WithoutKeys(said, options.keys), kShownBytes);
  message += Advice(head.status, code, WithoutKeys(region, options.keys), options);
  // Refusals of HEAD have no body that gives the reason.
  const bool is_unnamed = call.method == "HEAD" && head.status == 403;
  if (code == "RequestTimeTooSkewed" || is_unnamed) FollowClock(head, is_unnamed, message);
  if (!IsTransientAnswer(head.status, code)) throw Error(CodeOfRefusal(head.status), message);
  TransientFault fault(ErrorCode::kUnavailable, message);
  fault.retry_after = RetryAfter(head);
  throw fault;
}

// The signature of the refused request may be older than what another connection knows by now.
void ObjectClient::FollowClock(const HttpHead& head, bool is_unnamed, std::string& message) {
  if (store_.options().keys.empty()) return;  // an unsigned request has no time
  const std::optional<int64_t> ahead = SecondsAhead(head);
  if (!ahead || std::abs(*ahead) < kAllowedSkewS) return;
  const bool is_followed = std::abs(*ahead - signed_ahead_s_) < kAllowedSkewS;
  // A refusal without a name of a request with the store's time has another reason.
  if (is_unnamed && is_followed) return;
  message += std::string(is_unnamed ? "; or set this machine's clock" : "") + ", which is " +
             std::to_string(std::abs(*ahead)) + " s " + (*ahead > 0 ? "behind" : "ahead of") +
             " the store's";
  if (std::abs(*ahead) > kMostSkewS || is_followed) return;
  if (store_.clock_ahead_s.exchange(*ahead) != *ahead) {
    spdlog::warn("objects_clock_skew seconds={} reason=\"the store refused this machine's time\"",
                 *ahead);
  }
  TransientFault fault(CodeOfRefusal(head.status), message);
  fault.retry_after = std::chrono::milliseconds(0);
  throw fault;
}

}  // namespace tandem::engine
