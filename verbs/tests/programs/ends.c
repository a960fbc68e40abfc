/* What a device that is gone answers: EIO, whatever it is asked for that takes the device. */

#include "laws.h"

static int failed;

/* A call that answers with an error number, or leaves one in errno with -1 or NULL. */
#define GONE(answer)                                                               \
	do {                                                                       \
		errno = 0;                                                         \
		long answered = (long)(answer);                                    \
		if (answered != EIO && !(errno == EIO && answered <= 0)) {         \
			fprintf(stderr, "%s:%d: %s: %ld (errno %d)\n", __FILE__,   \
				__LINE__, #answer, answered, errno);               \
			failed++;                                                  \
		}                                                                  \
	} while (0)

static struct ibv_qp *unused;
static struct ibv_srq *srq;
static struct ibv_mw *window;
static struct ibv_ah *ah;
/* The same device, opened once more, and a thread that waits for an event of the first opening. */
static struct ibv_context *other;
static pthread_t hearing;

static void *hear_of_the_end(void *unused)
{
	struct ibv_async_event event;
	LAW(ibv_get_async_event(context, &event) == 0);
	LAW(event.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
	return unused;
}

void before_the_end(void)
{
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	unused = make_qp(cq);
	srq = ibv_create_srq(pd, &of_srq);
	window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	ah = ibv_create_ah(pd, &to);
	LAW(srq && window && ah);
	other = ibv_open_device(context->device);
	LAW(other && !is_readable(other->async_fd, 0));
	LAW(pthread_create(&hearing, NULL, hear_of_the_end, NULL) == 0);
}

/* Each opening hears once that the device has failed, be it in a call that waits or by a poll of its
   descriptor, and of nothing else. */
static void end_events(void)
{
	struct ibv_async_event event;
	LAW(pthread_join(hearing, NULL) == 0);
	LAW(is_readable(other->async_fd, PATIENCE_MS));
	LAW(ibv_get_async_event(other, &event) == 0);
	LAW(event.event_type == IBV_EVENT_DEVICE_FATAL);
	LAW(strcmp(ibv_event_type_str(event.event_type), "unknown") != 0);
	struct ibv_context *both[] = { context, other };
	for (int n = 0; n < 2; n++) {
		int fd = both[n]->async_fd, flags = fcntl(fd, F_GETFL);
		LAW(!is_readable(fd, 0) && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
		LAW(ibv_get_async_event(both[n], &event) == -1 && errno == EAGAIN);
	}
	ibv_ack_async_event(&event);
	LAW(ibv_close_device(other) == 0);
}

static void qps_are_gone(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_init_attr init;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	GONE(ibv_modify_qp(unused, &attr, mask));
	attr.qp_state = IBV_QPS_RTS;
	GONE(ibv_modify_qp(left, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_SQD;
	GONE(ibv_modify_qp(left, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RESET;
	GONE(ibv_modify_qp(left, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_ERR;
	GONE(ibv_modify_qp(left, &attr, IBV_QP_STATE));
	GONE(ibv_query_qp(left, &attr, IBV_QP_STATE, &init));
	struct ibv_qp_init_attr made = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1, .max_send_sge = 1 } };
	GONE(ibv_create_qp(pd, &made));
}

static void posts_are_gone(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr *bad_send, send = { .opcode = IBV_WR_SEND, .sg_list = &sge,
					       .num_sge = 1 };
	struct ibv_recv_wr *bad_receive, receive = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_mw_bind bind = { .bind_info = { .mr = mr, .addr = (uintptr_t)memory,
						   .length = 8 } };
	struct ibv_qp *both[] = { left, unused };
	for (int n = 0; n < 2; n++) {
		GONE(ibv_post_send(both[n], &send, &bad_send));
		GONE(ibv_post_recv(both[n], &receive, &bad_receive));
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(both[n]);
		ibv_wr_start(ex);
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 8);
		GONE(ibv_wr_complete(ex));
	}
	GONE(ibv_post_srq_recv(srq, &receive, &bad_receive));
	GONE(ibv_bind_mw(left, window, &bind));
}

static void objects_are_gone(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr srq_attr = { .max_wr = 16, .srq_limit = 1 };
	struct ibv_wc wc;
	GONE(ibv_alloc_pd(context));
	GONE(ibv_reg_mr(pd, memory, SIZE, 0));
	GONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
	GONE(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	GONE(ibv_create_ah(pd, &to));
	GONE(ibv_create_srq(pd, &of_srq));
	GONE(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT));
	GONE(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_MAX_WR));
	GONE(ibv_query_srq(srq, &srq_attr));
	GONE(ibv_create_cq(context, 8, NULL, channel, 0));
	GONE(ibv_resize_cq(cq, 300));
	GONE(ibv_poll_cq(cq, 1, &wc));
	struct ibv_poll_cq_attr poll = { 0 };
	GONE(ibv_start_poll(cq_ex, &poll));
}

static void device_is_gone(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	GONE(ibv_query_device(context, &device));
	GONE(ibv_query_port(context, 1, &port));
}

/* All of it can be destroyed. */
static void destroy_all(void)
{
	LAW(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0);
	LAW(ibv_destroy_qp(unused) == 0 && ibv_destroy_srq(srq) == 0);
	LAW(ibv_dealloc_mw(window) == 0 && ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
	LAW(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	LAW(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

void after_the_end(void)
{
	end_events();
	qps_are_gone();
	posts_are_gone();
	objects_are_gone();
	device_is_gone();
	LAW(failed == 0);
	destroy_all();
}
