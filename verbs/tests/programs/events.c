/* Events: of CQs, and those that nobody asked for. */

#include "laws.h"
#include <signal.h>
#include <sys/time.h>

static void send_one(void)
{
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	receive(6);
	LAW(ibv_post_send(left, &wr, &bad) == 0);
}

static void *wait_in_vain(void *unused)
{
	struct ibv_cq *whose;
	void *own;
	ibv_get_cq_event(channel, &whose, &own);
	return unused;
}

static void *wait_in_vain_for_others(void *unused)
{
	struct ibv_async_event event;
	ibv_get_async_event(context, &event);
	return unused;
}

/* A thread that waits can be cancelled. */
static void cancel(void *(*waits)(void *))
{
	pthread_t thread;
	void *result;
	LAW(pthread_create(&thread, NULL, waits, NULL) == 0);
	usleep(50000);
	LAW(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	LAW(result == PTHREAD_CANCELED);
}

static volatile sig_atomic_t signals;

static void count_signal(int signal)
{
	(void)signal;
	signals++;
}

/* SIGALRM comes every 20 ms, or with 0 never, and its handler asks for restarts or does not. */
static void alarms(int flags, int interval_ms)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };
	struct itimerval every = { { 0, interval_ms * 1000 }, { 0, interval_ms * 1000 } };
	LAW(sigaction(SIGALRM, &action, NULL) == 0);
	signals = 0;
	LAW(setitimer(ITIMER_REAL, &every, NULL) == 0);
}

static void *send_later(void *unused)
{
	usleep(100000);
	send_one();
	return unused;
}

/* An SRQ has fewer receives than a limit, which is an event. */
static void *limit_later(void *srq)
{
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	usleep(100000);
	LAW(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	return NULL;
}

/* A thread that gets none of the signals. */
static pthread_t without_signals(void *(*runs)(void *), void *of)
{
	pthread_t thread;
	sigset_t set, before;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	LAW(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
	LAW(pthread_create(&thread, NULL, runs, of) == 0);
	LAW(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	return thread;
}

/* A wait for another event goes on behind a handler that asks for restarts. */
static void interrupted_wait_for_others(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_async_event event;
	LAW(srq);
	pthread_t thread = without_signals(limit_later, srq);
	alarms(SA_RESTART, 20);
	LAW(ibv_get_async_event(context, &event) == 0 && signals > 1);
	alarms(0, 0);
	LAW(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	LAW(pthread_join(thread, NULL) == 0 && ibv_destroy_srq(srq) == 0);
}

/* A wait that a signal interrupts goes on, or ends, as read(2) does. */
static void interrupted_waits(void)
{
	struct ibv_async_event event;
	struct ibv_cq *whose;
	void *own;
	LAW(ibv_req_notify_cq(cq, 0) == 0);
	pthread_t thread = without_signals(send_later, NULL);
	/* A signal that is ignored has no handler, whatever its flags. */
	struct sigaction ignored = { .sa_handler = SIG_IGN }, pipe_before;
	LAW(sigaction(SIGPIPE, &ignored, &pipe_before) == 0);
	alarms(SA_RESTART, 20);
	LAW(ibv_get_cq_event(channel, &whose, &own) == 0 && whose == cq && signals > 1);
	alarms(0, 0);
	LAW(sigaction(SIGPIPE, &pipe_before, NULL) == 0);
	LAW(pthread_join(thread, NULL) == 0);
	ibv_ack_cq_events(cq, 1);
	completion();
	alarms(0, 20);
	LAW(ibv_get_cq_event(channel, &whose, &own) == -1 && errno == EINTR && signals > 0);
	LAW(ibv_get_async_event(context, &event) == -1 && errno == EINTR);
	alarms(0, 0);
	LAW(signal(SIGALRM, SIG_DFL) != SIG_ERR);
}

/* Stops the parent for a moment. */
static void stop_parent(void)
{
	pid_t parent = getppid();
	usleep(50000);
	LAW(kill(parent, SIGSTOP) == 0);
	usleep(50000);
	LAW(kill(parent, SIGCONT) == 0);
	_exit(0);
}

static void *send_after(void *child)
{
	int status;
	LAW(waitpid(*(pid_t *)child, &status, 0) == *(pid_t *)child && status == 0);
	/* The wait goes on, or has ended by then. */
	usleep(50000);
	send_one();
	return NULL;
}

/* To be stopped ends no wait, as it ends no read(2), whatever handlers there are. */
static void stopped_waits(void)
{
	struct ibv_cq *whose;
	void *own;
	pthread_t thread;
	LAW(ibv_req_notify_cq(cq, 0) == 0);
	alarms(0, 0);
	pid_t child = fork();
	if (child == 0)
		stop_parent();
	LAW(child > 0);
	LAW(pthread_create(&thread, NULL, send_after, &child) == 0);
	LAW(ibv_get_cq_event(channel, &whose, &own) == 0 && whose == cq && signals == 0);
	LAW(pthread_join(thread, NULL) == 0);
	ibv_ack_cq_events(cq, 1);
	completion();
	LAW(signal(SIGALRM, SIG_DFL) != SIG_ERR);
}

void events_of_cqs(void)
{
	struct ibv_cq *whose;
	void *own;
	LAW(!is_readable(channel->fd, 0));
	LAW(ibv_req_notify_cq(cq, 0) == 0);
	send_one();
	LAW(is_readable(channel->fd, PATIENCE_MS));
	LAW(ibv_get_cq_event(channel, &whose, &own) == 0 && whose == cq && own == &cq);
	LAW(!is_readable(channel->fd, 0));
	ibv_ack_cq_events(cq, 1);
	completion();
	int flags = fcntl(channel->fd, F_GETFL);
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	LAW(ibv_get_cq_event(channel, &whose, &own) == -1 && errno == EAGAIN);
	fcntl(channel->fd, F_SETFL, flags);
	while (is_readable(context->async_fd, 0)) {
		struct ibv_async_event event;
		LAW(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
	}
	interrupted_waits();
	stopped_waits();
	interrupted_wait_for_others();
	cancel(wait_in_vain);
	cancel(wait_in_vain_for_others);
	LAW(ibv_destroy_comp_channel(channel) == EBUSY);
	LAW(ibv_resize_cq(cq, 200) == 0 && cq->cqe >= 200);
}

void shared_receives(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	LAW(srq && init.attr.max_wr >= 8);
	struct ibv_srq_attr attr = { .srq_limit = 1000 };
	LAW(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	/* Fewer receives are posted than this from the beginning. */
	attr.srq_limit = 2;
	LAW(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	struct ibv_async_event event;
	LAW(is_readable(context->async_fd, PATIENCE_MS));
	LAW(ibv_get_async_event(context, &event) == 0);
	LAW(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	attr.max_wr = 32;
	LAW(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == 0 && ibv_query_srq(srq, &attr) == 0);
	LAW(attr.max_wr >= 32 && attr.srq_limit == 0);
	LAW(ibv_destroy_srq(srq) == 0);
}

/* The next event is this one, of the port. */
static void event_of_the_port(struct ibv_context *of, enum ibv_event_type type)
{
	struct ibv_async_event event;
	LAW(ibv_get_async_event(of, &event) == 0);
	LAW(event.event_type == type && event.element.port_num == 1);
	ibv_ack_async_event(&event);
}

/* Each opening of a device hears that its link goes down and comes up, and what the port is then. Who
   runs this takes the link down, and up, when it is asked to. */
void link_events(void)
{
	static const enum ibv_event_type types[] = { IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE };
	static const enum ibv_port_state states[] = { IBV_PORT_DOWN, IBV_PORT_ACTIVE };
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_port_attr port;
	LAW(other && !is_readable(other->async_fd, 0) && !is_readable(context->async_fd, 0));
	for (int n = 0; n < 2; n++) {
		puts(n == 0 ? "down" : "up");
		fflush(stdout);
		LAW(is_readable(other->async_fd, PATIENCE_MS));
		event_of_the_port(other, types[n]);
		event_of_the_port(context, types[n]);
		LAW(ibv_query_port(context, 1, &port) == 0 && port.state == states[n]);
		LAW(!is_readable(other->async_fd, 0) && !is_readable(context->async_fd, 0));
	}
	LAW(ibv_close_device(other) == 0);
}

static void *ack_later(void *event)
{
	usleep(100000);
	memory[0] = 1;
	ibv_ack_async_event(event);
	return NULL;
}

void errors(void)
{
	struct ibv_async_event event;
	pthread_t thread;
	struct ibv_send_wr *bad, wr = { .wr_id = 9, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey ^ 0x5555;
	LAW(ibv_post_send(left, &wr, &bad) == 0);
	struct ibv_wc wc = completion();
	LAW(wc.wr_id == 9 && wc.status == IBV_WC_REM_ACCESS_ERR && wc.vendor_err == 0);
	/* The QP whose memory was asked for hears of it. */
	do {
		LAW(is_readable(context->async_fd, PATIENCE_MS));
		LAW(ibv_get_async_event(context, &event) == 0);
		LAW(event.element.qp == left || event.element.qp == right);
		if (event.event_type != IBV_EVENT_QP_ACCESS_ERR)
			ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_QP_ACCESS_ERR);
	LAW(event.element.qp == right);
	LAW(strcmp(ibv_event_type_str(event.event_type), "unknown") != 0);
	/* Its destruction waits until that is acknowledged. */
	memory[0] = 0;
	LAW(pthread_create(&thread, NULL, ack_later, &event) == 0);
	LAW(ibv_destroy_qp(right) == 0 && memory[0] == 1);
	LAW(pthread_join(thread, NULL) == 0);
}
