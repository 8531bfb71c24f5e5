//! The seam on epoll and a few threads
