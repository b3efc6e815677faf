#include "server/http/http_server.h"

#include <malloc.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/thread_name.h"
#include "server/http/allowed_hosts.h"
#include "server/http/connection.h"
#include "server/http/net.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

constexpr auto kTrimInterval = 1s;

tcp::endpoint ListenEndpoint(const HttpOptions& options) {
  return {net::ip::make_address(ParseListenHost(options.host).address), options.port};
}

constexpr auto kPauseAfterFault = 1ms;
constexpr auto kAcceptRetry = 100ms;

// Lets the kernel detect a client that vanished silently: unacknowledged bytes or missing
// keep-alive replies end the connection after about a minute.
void TuneSocket(StrandSocket& socket, const HttpOptions& options) {
  boost::system::error_code ignored;
  socket.set_option(net::socket_base::send_buffer_size(options.send_buffer_bytes), ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(net::socket_base::keep_alive(true), ignored);
  const int idle_s = 30;
  const int interval_s = 10;
  const int n_probes = 3;
  // Not shorter than write_timeout, which measures a slow reader more precisely.
  const auto unacknowledged_ms =
      static_cast<unsigned int>(std::max(options.write_timeout, 60'000ms).count());
  const int fd = socket.native_handle();
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n_probes, sizeof(n_probes));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof(unacknowledged_ms));
}

std::string RemoteName(const StrandSocket& socket) {
  boost::system::error_code error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  return endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
}

// A client must not be able to end the process. An exception that leaves a callback, in practice
// out of memory, costs one operation of one connection. `recover` then restarts the permanent
// operations.
void RunIo(net::io_context& io, const std::function<void()>& recover) {
  bool has_failed = false;
  for (;;) {
    const auto error = Attempt([&] {
      if (has_failed) recover();
      io.run();
    });
    if (!error) return;
    has_failed = true;
    spdlog::error("http_io_exception what=\"{}\"", error->what());
    std::this_thread::sleep_for(kPauseAfterFault);
  }
}

// Counts pending handlers, whether they are later called or dropped.
class Pending {
 public:
  explicit Pending(std::shared_ptr<std::atomic<int>> count) : count_(std::move(count)) {
    ++*count_;
  }
  ~Pending() {
    if (count_) --*count_;
  }
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = delete;

 private:
  std::shared_ptr<std::atomic<int>> count_;
};

}  // namespace

struct HttpServer::State {
  State(HttpOptions options, std::vector<Route> routes, HttpPolicy policy)
      : has_worker_routes(
            std::any_of(routes.begin(), routes.end(),
                        [](const Route& route) { return route.runs_on == RunsOn::kWorker; })),
        shared(std::make_shared<ConnectionShared>(std::move(options), std::move(routes),
                                                  std::move(policy))),
        acceptor(shared->io.get_executor()),
        retry_timer(shared->io.get_executor()),
        trim_timer(shared->io.get_executor()),
        work(net::make_work_guard(shared->io)),
        answer_work(net::make_work_guard(shared->answer_io)) {}

  void Accept();
  void RetryAccept();
  void WatchMemory();
  // Restarts accepting and WatchMemory after an exception has ended them. On the io thread.
  void Revive();
  void OnAccepted(StrandSocket socket);
  std::vector<std::shared_ptr<Connection>> Connections();

  const bool has_worker_routes;
  std::shared_ptr<ConnectionShared> shared;
  std::mutex acceptor_mutex;  // guards the next two
  net::basic_socket_acceptor<tcp, IoExecutor> acceptor;
  StrandTimer retry_timer;
  StrandTimer trim_timer;  // io thread only
  // Number of pending handlers of the acceptor and its timer. At 0 the server no longer accepts.
  const std::shared_ptr<std::atomic<int>> n_accepting = std::make_shared<std::atomic<int>>(0);
  // Number of pending handlers of trim_timer. At 0 WatchMemory has ended.
  const std::shared_ptr<std::atomic<int>> n_watching = std::make_shared<std::atomic<int>>(0);
  net::executor_work_guard<net::io_context::executor_type> work;
  net::executor_work_guard<net::io_context::executor_type> answer_work;
  std::vector<std::thread> threads;
  uint16_t port = 0;
  bool stopped = false;
  bool is_closing = false;  // io thread only: no timer starts any more
};

// After a burst of large bodies the allocator keeps their memory and that of the parsed JSON.
// malloc_trim returns it to the system. It takes milliseconds, so a request thread calls it.
void HttpServer::State::WatchMemory() {
  trim_timer.expires_after(kTrimInterval);
  trim_timer.async_wait(
      [this, pending = Pending(n_watching)](const boost::system::error_code& cancelled) {
        if (cancelled || is_closing) return;
        if (shared->body_budget->TakeBurst()) shared->pool->TryPost(0, [] { malloc_trim(0); });
        WatchMemory();
      });
}

void HttpServer::State::Accept() {
  const std::lock_guard lock(acceptor_mutex);
  if (!acceptor.is_open()) return;
  acceptor.async_accept(shared->io.get_executor(),
                        [this, pending = Pending(n_accepting)](
                            const boost::system::error_code& error, StrandSocket socket) {
                          if (error == net::error::operation_aborted) return;
                          if (error) {
                            // Probably out of descriptors: wait until some are free instead of
                            // spinning.
                            spdlog::warn("accept_failed error=\"{}\"", error.message());
                            return RetryAccept();
                          }
                          if (!HasMemoryFor([&] { OnAccepted(std::move(socket)); })) {
                            spdlog::warn("connection_refused reason=out_of_memory");
                          }
                          Accept();
                        });
}

void HttpServer::State::RetryAccept() {
  const std::lock_guard lock(acceptor_mutex);
  if (!acceptor.is_open()) return;
  retry_timer.expires_after(kAcceptRetry);
  retry_timer.async_wait(
      [this, pending = Pending(n_accepting)](const boost::system::error_code& cancelled) {
        if (!cancelled) Accept();
      });
}

void HttpServer::State::Revive() {
  if (*n_accepting == 0) Accept();
  if (*n_watching == 0 && !is_closing) WatchMemory();
}

void HttpServer::State::OnAccepted(StrandSocket socket) {
  TuneSocket(socket, shared->options);
  std::string remote = RemoteName(socket);
  const auto executor = socket.get_executor();
  const auto connection =
      std::make_shared<Connection>(std::move(socket), std::move(remote), shared);
  size_t n_open = 0;
  {
    const std::lock_guard lock(shared->mutex);
    n_open = shared->connections.size();
    shared->connections.emplace(connection.get(), connection);
  }
  // The first 64 connections above the limit get a 503; further ones are closed without an answer.
  if (n_open >= shared->options.max_connections + 64) return;
  const bool is_overloaded = n_open >= shared->options.max_connections;
  net::post(executor, [connection, is_overloaded] {
    is_overloaded ? connection->StartOverloaded() : connection->Start();
  });
}

std::vector<std::shared_ptr<Connection>> HttpServer::State::Connections() {
  std::vector<std::shared_ptr<Connection>> out;
  const std::lock_guard lock(shared->mutex);
  for (const auto& [pointer, weak] : shared->connections) {
    if (std::shared_ptr<Connection> connection = weak.lock()) out.push_back(std::move(connection));
  }
  return out;
}

HttpServer::HttpServer(HttpOptions options, std::vector<Route> routes, HttpPolicy policy)
    : state_(std::make_unique<State>(std::move(options), std::move(routes), std::move(policy))) {
  const HttpOptions& limits = state_->shared->options;
  const tcp::endpoint endpoint = ListenEndpoint(limits);
  boost::system::error_code error;
  state_->acceptor.open(endpoint.protocol(), error);
  if (!error) state_->acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) state_->acceptor.bind(endpoint, error);
  if (!error) state_->acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) {
    throw Error(ErrorCode::kUnavailable,
                "cannot listen on " + limits.host + ":" + std::to_string(limits.port) + ": " +
                    error.message() + "; choose another with --host and " + limits.port_flag);
  }
  state_->port = state_->acceptor.local_endpoint().port();
}

HttpServer::~HttpServer() { Stop(); }

uint16_t HttpServer::port() const { return state_->port; }

void HttpServer::Start() {
  ConnectionShared& shared = *state_->shared;
  shared.pool = std::make_unique<RequestPool>(RequestPool::Options{
      .n_threads = shared.options.n_request_threads,
      .max_queued = shared.options.max_queued_requests,
      .name = shared.options.thread_names + "-req",
  });
  if (state_->has_worker_routes) {
    shared.worker = std::make_unique<RequestPool>(RequestPool::Options{
        .max_queued = shared.options.max_queued_for_worker,
        .max_queued_per_client = shared.options.max_queued_for_worker_per_client,
        .name = shared.options.thread_names + "-worker",
    });
  }
  state_->Accept();
  net::post(shared.io, [state = state_.get()] { state->WatchMemory(); });
  state_->threads.emplace_back([state = state_.get()] {
    NameThisThread(state->shared->options.thread_names + "-io");
    RunIo(state->shared->io, [state] { state->Revive(); });
  });
  state_->threads.emplace_back([&shared] {
    NameThisThread(shared.options.thread_names + "-answer");
    RunIo(shared.answer_io, [] {});
  });
}

void HttpServer::ReplaceCertificate(const TlsPair& pair) {
  auto fresh = std::make_shared<const TlsContext>(pair);
  const std::lock_guard lock(state_->shared->mutex);
  TANDEM_CHECK(state_->shared->tls != nullptr);
  state_->shared->tls.swap(fresh);
}

void HttpServer::Drain() {
  if (state_->shared->draining.exchange(true)) return;
  for (const auto& connection : state_->Connections()) connection->CloseIfIdle();
}

bool HttpServer::WaitDrained(std::chrono::milliseconds timeout) {
  ConnectionShared& shared = *state_->shared;
  std::unique_lock lock(shared.mutex);
  return shared.changed.wait_for(lock, timeout, [&] { return shared.n_running == 0; });
}

void HttpServer::Stop() {
  if (state_->stopped) return;
  state_->stopped = true;
  ConnectionShared& shared = *state_->shared;
  if (state_->threads.empty()) return;
  Drain();
  // First: a connection accepted after the lists below are made would never be closed.
  std::promise<void> closed;
  net::post(shared.io, [state = state_.get(), &closed] {
    {
      const std::lock_guard lock(state->acceptor_mutex);
      boost::system::error_code ignored;
      state->acceptor.close(ignored);
      state->retry_timer.cancel();
    }
    state->is_closing = true;
    state->trim_timer.cancel();
    closed.set_value();
  });
  closed.get_future().wait();
  for (const auto& connection : state_->Connections()) connection->AbortRequests();
  WaitDrained(1s);
  {
    // Waits a moment for the last bytes; lingering connections count until they close.
    std::unique_lock lock(shared.mutex);
    shared.changed.wait_for(lock, shared.options.linger_timeout,
                            [&] { return shared.connections.empty(); });
  }
  for (const auto& connection : state_->Connections()) connection->CloseNow();
  // Running handlers may answer into closed connections. After this, only producers outside this
  // room can post, and they find no connection.
  shared.pool->Stop();
  if (shared.worker) shared.worker->Stop();
  state_->work.reset();
  state_->answer_work.reset();
  for (std::thread& thread : state_->threads) thread.join();
  state_->threads.clear();
}

size_t HttpServer::open_connections() const {
  const std::lock_guard lock(state_->shared->mutex);
  return state_->shared->connections.size();
}

size_t HttpServer::running_requests() const {
  const std::lock_guard lock(state_->shared->mutex);
  return state_->shared->n_running;
}

bool HttpServer::is_draining() const { return state_->shared->draining; }

}  // namespace tandem::server
