#pragma once

// The only header that includes Boost. Every other file of this room may include it; no header used
// outside the room does. Boost 1.74 needs <utility> before its own headers with g++ 12.
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <utility>

namespace tandem::server {

namespace net = boost::asio;
namespace beast_http = boost::beast::http;
using tcp = net::ip::tcp;

// One thread runs the io context, so it serves as the strand of every connection. A concrete
// executor type, unlike the type-erased any_io_executor, saves an allocation and an indirection per
// operation.
using IoExecutor = net::io_context::executor_type;
using StrandSocket = net::basic_stream_socket<tcp, IoExecutor>;
using StrandTimer =
    net::basic_waitable_timer<std::chrono::steady_clock,
                              net::wait_traits<std::chrono::steady_clock>, IoExecutor>;

}  // namespace tandem::server
