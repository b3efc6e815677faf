#include "engine/objects/object_client.h"

#include <algorithm>
#include <charconv>
#include <ctime>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/base/url.h"
#include "engine/io/sha256.h"
#include "engine/objects/xml_reader.h"

namespace tandem::engine {
namespace {

// A page of a list has at most 1000 keys of 1 KiB, each byte of which may be a reference.
constexpr size_t kMaxListBytes = size_t{16} << 20;
constexpr size_t kMaxAnswerBytes = size_t{1} << 20;
constexpr size_t kMaxTokenText = 8192;  // of a continuation token or an upload's id
constexpr uint64_t kMaxObjectBytes = uint64_t{1} << 50;
constexpr size_t kShownBytes = 300;
// Fewer bytes between two faults do not count as progress.
constexpr size_t kMinProgress = size_t{64} << 10;

std::string TimeOfRequest() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const size_t n = std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return std::string(text, n);
}

std::optional<uint64_t> ParseSize(std::string_view text) {
  uint64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value > kMaxObjectBytes) return std::nullopt;
  return value;
}

// An ETag goes into fields of requests: quotes around visible characters.
bool IsEtag(std::string_view etag) {
  return etag.size() > 2 && etag.size() <= 256 && etag.front() == '"' && etag.back() == '"' &&
         std::all_of(etag.begin() + 1, etag.end() - 1,
                     [](char c) { return c > 0x20 && c < 0x7f && c != '"'; });
}

bool IsTokenText(std::string_view text) {
  return !text.empty() && text.size() <= kMaxTokenText &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string CheckedEtag(const HttpHead& head, const std::string& where) {
  const std::string_view etag = head.Find("etag");
  if (!IsEtag(etag)) {
    throw Error(ErrorCode::kDataLoss, where + ": the response has no valid ETag");
  }
  return std::string(etag);
}

uint64_t CheckedLength(const HttpHead& head, const std::string& where) {
  const std::optional<uint64_t> size = ParseSize(head.Find("content-length"));
  if (!size)
    throw Error(ErrorCode::kDataLoss, where + ": the response has no valid Content-Length");
  return *size;
}

// Lists encode keys as queries do: '+' is a space.
std::string DecodedKey(std::string text, const std::string& where) {
  std::replace(text.begin(), text.end(), '+', ' ');
  std::optional<std::string> key = PercentDecode(text);
  if (!key) throw Error(ErrorCode::kDataLoss, where + ": the list has a key with a bad encoding");
  return *std::move(key);
}

// Removes the secrets from a server's text.
std::string WithoutKeys(std::string text, const ObjectKeys& keys) {
  for (const std::string* secret :
       {&keys.access_key_id, &keys.secret_access_key, &keys.session_token}) {
    if (secret->empty()) continue;
    for (size_t at = 0; (at = text.find(*secret, at)) != std::string::npos;) {
      text.replace(at, secret->size(), "[key]");
    }
  }
  return text;
}

ErrorCode CodeOfStatus(int status) {
  switch (status) {
    case 401:
      return ErrorCode::kUnauthenticated;
    case 403:
      return ErrorCode::kPermissionDenied;
    case 404:
    case 410:
      return ErrorCode::kNotFound;
    case 412:
    case 416:
      return ErrorCode::kDataLoss;
    default:
      return ErrorCode::kFailedPrecondition;
  }
}

bool IsTransient(int status, std::string_view code) {
  return status == 408 || status == 425 || status == 429 || status >= 500 || code == "SlowDown" ||
         code == "RequestTimeout" || code == "InternalError";
}

std::optional<std::chrono::milliseconds> RetryAfter(const HttpHead& head) {
  const std::optional<uint64_t> seconds = ParseSize(head.Find("retry-after"));
  if (!seconds) return std::nullopt;
  return std::chrono::seconds(std::min<uint64_t>(*seconds, 86'400));
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

ObjectStore::ObjectStore(const ObjectUrl& url, std::stop_token stop)
    : ObjectStore(url, ObjectOptionsFromEnvironment(url), std::move(stop)) {}

ObjectStore::ObjectStore(const ObjectUrl& url, ObjectOptions options, std::stop_token stop)
    : place_{url.kind, url.bucket, {}},
      options_(std::move(options)),
      http_(options_.http, std::move(stop)) {
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

template <class Action>
auto ObjectClient::Retry(const Call& call, const Action& action) {
  Backoff backoff(store_.http(), PatienceOfStore());
  for (;;) {
    std::optional<decltype(action())> result;
    const auto fault = ExceptionOf<TransientFault>([&] { result.emplace(action()); });
    if (!fault) return *std::move(result);
    WaitAfter(call, *fault, backoff);
  }
}

HttpHead ObjectClient::Send(const Call& call) {
  const ObjectOptions& options = store_.options();
  HttpClient::Request request;
  request.method = call.method;
  request.url = store_.http().endpoint;
  request.may_carry_token = false;
  request.more_body = call.bytes;

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
    const std::string time = TimeOfRequest();
    // TLS protects the body already; a hash would cost as much time as the transfer.
    const bool is_protected = request.url.is_https && !call.bytes.empty();
    signed_part.payload_sha256 =
        is_protected
            ? "UNSIGNED-PAYLOAD"
            : ToHex(Sha256Of(std::as_bytes(std::span(call.bytes.data(), call.bytes.size()))));
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
  if (call.bytes.empty() && call.method != "GET" && call.method != "HEAD") {
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
  const ObjectOptions& options = store_.options();
  std::string message = Where(call) + ": status " + std::to_string(head.status);
  if (!code.empty()) message += " " + EscapeJson(code.substr(0, 60));
  if (!said.empty()) {
    message +=
        " " + Quoted(WithoutKeys(said.substr(0, 4 * kShownBytes), options.keys), kShownBytes);
  }
  message += Advice(head.status, code, region, options);
  if (!IsTransient(head.status, code)) throw Error(CodeOfStatus(head.status), message);
  TransientFault fault(ErrorCode::kUnavailable, message);
  fault.retry_after = RetryAfter(head);
  throw fault;
}

std::optional<ObjectInfo> ObjectClient::Find(const std::string& key) {
  const Call call{.method = "HEAD", .key = key, .accepted_status = 404};
  return Retry(call, [&]() -> std::optional<ObjectInfo> {
    const HttpHead head = Send(call);
    if (head.status == 404) return std::nullopt;
    return ObjectInfo{key, CheckedLength(head, Where(call)), CheckedEtag(head, Where(call))};
  });
}

std::vector<ObjectInfo> ObjectClient::List(const std::string& prefix, size_t max_objects) {
  std::vector<ObjectInfo> objects;
  std::string token;
  for (;;) {
    Call call{.method = "GET", .key = ""};
    call.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix}};
    if (!token.empty()) call.query.emplace_back("continuation-token", token);
    const XmlElement page = Retry(call, [&] {
      Send(call);
      return WithContext("list of " + store_.Name(prefix) + ": ",
                         [&] { return ParseXml(Body(kMaxListBytes)); });
    });
    const std::string where = "list of " + EscapeJson(store_.Name(prefix));
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::kDataLoss, where + ": " + why);
    };
    if (page.name != "ListBucketResult") refuse("the response is not a list of objects");
    const bool is_encoded = page.TextOf("EncodingType") == "url";
    for (const XmlElement& entry : page.children) {
      if (entry.name != "Contents") continue;
      ObjectInfo info;
      info.key = entry.TextOf("Key");
      if (is_encoded) info.key = DecodedKey(std::move(info.key), where);
      info.etag = entry.TextOf("ETag");
      if (!info.etag.starts_with('"')) info.etag = "\"" + info.etag + "\"";
      const std::optional<uint64_t> size = ParseSize(entry.TextOf("Size"));
      if (!size) refuse("an object without a valid size");
      info.size = *size;
      if (!IsEtag(info.etag)) refuse("an object without a valid ETag");
      if (!info.key.starts_with(prefix)) refuse("a key that is not below the prefix");
      // Also ends a server that sends the same page again and again.
      if (!objects.empty() && info.key <= objects.back().key) refuse("the keys are not in order");
      if (objects.size() == max_objects) {
        refuse("more than " + std::to_string(max_objects) +
               " objects; name a smaller part of the bucket");
      }
      objects.push_back(std::move(info));
    }
    if (page.TextOf("IsTruncated") != "true") return objects;
    std::string next = page.TextOf("NextContinuationToken");
    if (!IsTokenText(next) || next == token) refuse("it is cut, without a token for the rest");
    token = std::move(next);
  }
}

void ObjectClient::ReadRange(const ObjectInfo& info, uint64_t begin, std::span<char> out) {
  TANDEM_CHECK(begin <= info.size && out.size() <= info.size - begin);
  size_t n_read = 0;
  size_t at_last_fault = 0;
  Backoff backoff(store_.http(), PatienceOfStore());
  while (n_read < out.size()) {
    const auto fault = ExceptionOf<TransientFault>([&] { ReadOnce(info, begin, out, n_read); });
    if (!fault) continue;
    if (n_read >= at_last_fault + kMinProgress) {
      backoff.Progressed();
      at_last_fault = n_read;
    }
    WaitAfter({.method = "GET", .key = info.key}, *fault, backoff);
  }
}

void ObjectClient::ReadOnce(const ObjectInfo& info, uint64_t begin, std::span<char> out,
                            size_t& n_read) {
  const uint64_t first = begin + n_read;
  const uint64_t last = begin + out.size() - 1;
  const std::string range = std::to_string(first) + "-" + std::to_string(last);
  const Call call{.method = "GET",
                  .key = info.key,
                  .fields = {{"if-match", info.etag}, {"range", "bytes=" + range}},
                  .accepted_status = 412};
  const HttpHead head = Send(call);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kDataLoss, Where(call) + ": " + why);
  };
  if (head.status == 412 || head.Find("etag") != info.etag) {
    refuse("the object changed while it was read: run the same command again");
  }
  const bool is_whole = head.status == 200 && first == 0 && last + 1 == info.size;
  const std::string expected = "bytes " + range + "/" + std::to_string(info.size);
  if (!is_whole && (head.status != 206 || head.Find("content-range") != expected)) {
    refuse("requested bytes " + range + " of " + std::to_string(info.size) +
           ", but the response has status " + std::to_string(head.status) + " and Content-Range " +
           Quoted(head.Find("content-range"), 80));
  }
  if (CheckedLength(head, Where(call)) != last + 1 - first) {
    refuse("requested bytes " + range + ", but Content-Length is " +
           Quoted(head.Find("content-length"), 30));
  }
  while (n_read < out.size()) {
    const size_t n = http_.ReadBody(out.subspan(n_read));
    if (n == 0) throw TransientFault(ErrorCode::kUnavailable, "the response ended too early");
    n_read += n;
  }
  // Reads the end of the body, so that the connection can be kept.
  char rest = 0;
  if (http_.ReadBody(std::span(&rest, 1)) != 0) refuse("the response is too long");
}

std::optional<std::string> ObjectClient::Read(const std::string& key, size_t max_bytes) {
  const Call call{.method = "GET", .key = key, .accepted_status = 404};
  return Retry(call, [&]() -> std::optional<std::string> {
    const HttpHead head = Send(call);
    if (head.status == 404) return std::nullopt;
    const uint64_t size = CheckedLength(head, Where(call));
    if (size > max_bytes) {
      throw Error(ErrorCode::kDataLoss, Where(call) + ": it has " + std::to_string(size) +
                                            " bytes, more than the limit of " +
                                            std::to_string(max_bytes));
    }
    return Body(max_bytes);
  });
}

void ObjectClient::Put(const std::string& key, std::string_view bytes) {
  const Call call{.method = "PUT", .key = key, .bytes = bytes};
  Retry(call, [&] {
    const int status = Send(call).status;
    Body(kMaxAnswerBytes);
    return status;
  });
}

void ObjectClient::Delete(const std::string& key) {
  const Call call{.method = "DELETE", .key = key, .accepted_status = 404};
  Retry(call, [&] { return Send(call).status; });
}

std::string ObjectClient::BeginUpload(const std::string& key) {
  const Call call{.method = "POST", .key = key, .query = {{"uploads", ""}}};
  return Retry(call, [&] {
    Send(call);
    const XmlElement answer =
        WithContext(Where(call) + ": ", [&] { return ParseXml(Body(kMaxAnswerBytes)); });
    std::string upload = answer.TextOf("UploadId");
    if (!IsTokenText(upload)) {
      throw Error(ErrorCode::kDataLoss, Where(call) + ": the response has no valid upload id");
    }
    return upload;
  });
}

std::string ObjectClient::PutPart(const std::string& key, const std::string& upload, int number,
                                  std::string_view bytes) {
  const Call call{.method = "PUT",
                  .key = key,
                  .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}},
                  .bytes = bytes};
  return Retry(call, [&] {
    const HttpHead head = Send(call);
    Body(kMaxAnswerBytes);
    return CheckedEtag(head, Where(call));
  });
}

void ObjectClient::FinishUpload(const std::string& key, const std::string& upload,
                                const std::vector<std::string>& etags) {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    body += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" +
            XmlEscaped(etags[i]) + "</ETag></Part>";
  }
  body += "</CompleteMultipartUpload>";
  const Call call{.method = "POST", .key = key, .query = {{"uploadId", upload}}, .bytes = body};
  Retry(call, [&] {
    HttpHead head = Send(call);
    const XmlElement answer =
        WithContext(Where(call) + ": ", [&] { return ParseXml(Body(kMaxAnswerBytes)); });
    // The store may find a fault after it has sent the status 200.
    if (answer.name == "CompleteMultipartUploadResult") return true;
    const std::string code = answer.TextOf("Code");
    const std::string message =
        Where(call) + ": the upload was refused at its end: " + Quoted(code, 60);
    if (IsTransient(0, code)) throw TransientFault(ErrorCode::kUnavailable, message);
    throw Error(ErrorCode::kFailedPrecondition, message);
  });
}

void ObjectClient::AbortUpload(const std::string& key, const std::string& upload) {
  const Call call{
      .method = "DELETE", .key = key, .query = {{"uploadId", upload}}, .accepted_status = 404};
  Retry(call, [&] { return Send(call).status; });
}

}  // namespace tandem::engine
